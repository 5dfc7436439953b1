// Collectives by copy engines, between the GPUs of one machine. NCCL calls them zero-CTA
// collectives; PyTorch's term is symmetric memory.
//
// NCCL's collectives are kernels. They take multiprocessors from the matrix products that run at
// the same time, and occupy them while they spin and wait for each other. But a GPU also has copy
// engines, which write into a peer's memory over NVLink at full speed. With memory that the ranks
// have mapped (peer_memory.h), data therefore travel without a kernel; only sums need a kernel, and
// a short one:
//
//     all-gather        meet   rank r copies its slice to slice r of everybody's `out`
//                       meet
//     reduce-scatter   (meet)  rank r copies slice s of its `in` to its slot of rank s's scratch,
//                              for all s
//                       meet   sum the slots
//     all-reduce        a reduce-scatter into x's own slices, then an all-gather of them in place
//     send/recv         meet   rank r copies its i-th message to where its peer receives the i-th
//                       meet
//     all-to-all        meet   rank r copies slice s of its `in` to its place in rank s's `out`,
//                       meet   which follows from all ranks' counts
//
// Every rank sends to the next rank first, so that none receives from two at once. meet() is a wait
// in the stream, not in a kernel, and takes 6 to 11 us; "(meet)" is left out if the ranks have met
// since the scratch was last summed. Sums are in rank order in fp32 and rounded once, as on the CPU
// (comm.h).
//
// The sum of an asynchronous reduction runs on the compute stream. On the communication stream it
// would wait for a multiprocessor until the running matrix product ends (a millisecond, for a
// kernel of 20 us), and all communication queued after it would wait as well. The sum is queued
// when somebody waits for the Work, when a later reduction of the group needs the scratch, or when
// a call uses its result; by then the copies are done:
//
//     compute         backward L8      backward L7      | sum L8 | backward L6      | sum L7 | ...
//     communication                    copies L8                   copies L7
#pragma once

#include "comm_nccl.h"

namespace ultrascale::copies {

// Whether this call uses the copy engines; false if `peers` is null. The answer depends only on
// sizes and on symmetric memory, so it is the same on all ranks.
bool fit(const Operation& operation, const PeerMemory* peers);

// Allocates memory for the other ranks' summands (empty if nothing is summed). If the group's
// earlier reductions hold too much scratch, their sums are queued first.
Tensor scratch(const Operation& operation, PeerMemory& peers);
void start(Work::Impl& work, const Operation& operation, Stream& stream);

// Queues the sums that this operation's tensors depend on, and makes `stream` wait for them.
void sum_for(const Operation& operation, Stream& stream);
void sum(Work::Impl& work);  // does so for one Work

}  // namespace ultrascale::copies
