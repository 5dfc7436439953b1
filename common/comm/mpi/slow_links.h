// Simulated nodes (comm.h: pretend_nodes): messages between them take as long as over a slow
// network.
//
//         node 0                 node 1
//     rank 0   rank 1        rank 2   rank 3      inside a node: as fast as the machine is
//       |        |             |        |
//      NIC      NIC           NIC      NIC        every rank has a network card of its own, as a
//       |        |             |        |         DGX has one per GPU; it sends and receives at the
//       |        |             |        |         same time, at the full rate in each direction
//     ==+========+=============+========+==       the switches between the cards are never the
//                                                 bottleneck
//
// A message occupies its sender's card for bytes / rate seconds as soon as the card is free, and
// likewise its receiver's. Messages that start together share a card. On the CPU a second message
// follows each one with the time during which it occupies the sender's card, and neither side
// treats the message as complete before both cards are done; the waiting rank sleeps, as it would
// while a network card works. NCCL's messages are out of our reach, so on CUDA the stream waits
// after a call for as long as the cards would have worked (comm/nccl/slow_link.cu).
#pragma once

#include "comm/nodes.h"
#include "comm_mpi.h"

namespace ultrascale {

struct SlowLinks {
    Nodes nodes = {};  // nodes.ranks 0: none are simulated
    double bytes_per_second = 0;
    bool on() const { return nodes.ranks > 0; }
    bool between(int a, int b) const { return on() && nodes.between(a, b); }  // ranks in world()
};
SlowLinks& slow_links();
// The bytes that this rank has sent to other simulated nodes since the program's start, or that its
// card would have in NCCL's calls (slow_link_bytes()). Tests compare them with what nodes.h says.
std::atomic<int64_t>& bytes_between_nodes();

// On the steady clock that all processes of a machine share.
double machine_seconds();
void sleep_until(double machine_time);

// This rank's card sends `bytes`. `since`: when the messages that share the card with this one
// started; 0 for the first of them, which sets it.
SlowTrip send_over_slow_link(int64_t bytes, double& since);
// When this rank's card has received a message that occupied its sender's card during `sent`.
double receive_over_slow_link(int64_t bytes, const SlowTrip& sent);

// The bytes that a card sends, or receives if these are more, in an operation as NCCL runs it:
// all-reduce, all-gather, reduce-scatter, broadcast and reduce along one ring in rank order, whose
// links between nodes are the bottleneck; the others as messages from rank to rank.
double slow_link_bytes(const Operation& operation, const Communicator::Impl& group);

}  // namespace ultrascale
