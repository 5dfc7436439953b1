// Simulated nodes (comm.h: pretend_nodes): messages between nodes take as long as over a slow
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
// follows each one and tells how long the sender's card is occupied. Neither side treats the
// message as complete before both cards are done; the waiting rank sleeps, as it would while a
// network card works. We cannot delay NCCL's messages themselves, so on CUDA the stream waits after
// a call for as long as the cards would have worked (comm/nccl/slow_link.cu).
#pragma once

#include "comm/nodes.h"
#include "comm_mpi.h"

namespace ultrascale {

struct SlowLinks {
    Nodes nodes = {};  // nodes.ranks 0: none are simulated
    double bytes_per_second = 0, hop_seconds = 0;
    bool on() const { return nodes.ranks > 0; }
    bool between(int a, int b) const { return on() && nodes.between(a, b); }  // ranks in world()
};
SlowLinks& slow_links();
// The bytes that this rank has sent to other simulated nodes since the program's start, including
// those that its card would have sent in NCCL's calls (slow_link_bytes()). Tests compare them with
// nodes.h.
std::atomic<int64_t>& bytes_between_nodes();

// The time on the steady clock that all processes of a machine share.
double machine_seconds();
void sleep_until(double machine_time);

// Lets this rank's card send `bytes`. `since` is when the messages that share the card with this
// one started; it is 0 for the first of them, which sets it.
SlowTrip send_over_slow_link(int64_t bytes, double& since);
// The time when this rank has a message that occupied its sender's card during `sent`: when its own
// card has received it, and a hop's latency later.
double receive_over_slow_link(int64_t bytes, const SlowTrip& sent);

// The bytes that a card sends, or receives if these are more, in an operation as NCCL runs it.
// All-reduce, all-gather, reduce-scatter, broadcast and reduce go along one ring in rank order,
// whose links between nodes are the bottleneck; the others are messages from rank to rank.
double slow_link_bytes(const Operation& operation, const Communicator::Impl& group);

}  // namespace ultrascale
