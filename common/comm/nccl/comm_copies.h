// Collectives by copy engines, between GPUs of one machine: what NCCL calls zero-CTA collectives
// and PyTorch symmetric memory.
//
// NCCL's collectives are kernels. They take multiprocessors from the matrix products beside them,
// and wait for each other there by spinning. But a GPU has copy engines that do nothing else, and
// over NVLink they write into a peer's memory at full speed. So with memory that the ranks have
// mapped (peer_memory.h) data travel without a kernel, and only sums need one, a short one:
//
//     all-gather        meet   rank r copies its slice to slice r of everybody's `out`
//                       meet
//     reduce-scatter   (meet)  rank r copies slice s of its `in` to its slot of rank s's scratch,
//                              for all s
//                       meet   sum the slots
//     all-reduce        a reduce-scatter into x's own slices, then an all-gather of them in place
//
// Every rank begins with the next one, so that none receives from two at once. meet() is a wait in
// the stream, not in a kernel, and takes 6 to 11 us; (meet) is left out where another one has come
// since the scratch was last summed. Sums are in rank order in fp32 and rounded once: the CPU's
// rules (comm.h).
//
// The sum of an asynchronous reduction runs on the compute stream. On the communication stream it
// would wait for a multiprocessor until the matrix product under way is over (a millisecond, for a
// kernel of 20 us), and so would all communication behind it. It is queued when somebody waits for
// the Work, when a later reduction of the group needs the scratch, or when a call touches its
// result; by then the copies are over:
//
//     compute         backward L8      backward L7      | sum L8 | backward L6      | sum L7 | ...
//     communication                    copies L8                   copies L7
#pragma once

#include "comm_nccl.h"

namespace ultrascale::copies {

// Whether this call goes by copies: a matter of sizes and of symmetric memory, so the same on all
// ranks. `peers` null: no.
bool fit(const Operation& operation, const PeerMemory* peers);

// Where the others' summands will lie (none: an all-gather). It queues sums of the group's
// reductions before where they hold too much.
Tensor scratch(const Operation& operation, PeerMemory& peers);
void start(Work::Impl& work, const Operation& operation, Stream& stream);

// Queues the sums that this operation's tensors depend on; then `stream` has them before it.
void sum_for(const Operation& operation, Stream& stream);
void sum(Work::Impl& work);  // the same for one Work

}  // namespace ultrascale::copies
