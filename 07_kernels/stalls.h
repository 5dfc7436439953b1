// --stalls: what the warps of a matrix product wait for, estimated from their requests.
//
// A scheduler issues an instruction of a warp that is ready. A warp is not ready, it *stalls*, if
// the unit that it needs has a full queue. Nsight Compute names the reason:
//
//     math_pipe_throttle   the multipliers are busy: as it should be
//     mio_throttle         the queue to shared memory is full (MIO: memory input/output)
//     lg_throttle          the queue to global memory is full (local, global)
//
// In each clock an SM of a Hopper GPU can do 128 multiply-adds, which are 4 warps' instructions; or
// one turn (wavefront) of shared memory; or one line of 128 bytes of the L1 cache, 4 sectors. So a
// kernel takes at least
//
//     max( multiply-adds / 128,  turns of shared memory,  max(requests, sectors / 4) )   clocks
//
// and its multipliers work for the first number's share of the largest. With two loads from shared
// memory for each multiply-add that is (1/4) / 2, an eighth, and more warps cannot help: they would
// wait in the same queue. *Thread coarsening*, several results a thread, can: a number that was
// loaded into a register serves several multiply-adds.
//
// This is an upper bound: it ignores caches, latency and barriers, and nvcc may join loads.
#pragma once

#include "ladder.h"

namespace ultrascale::kernels {

struct Clocks {  // one SM's, if it did all the work
    double multiply, shared, global;
    double longest() const;
    double share_of_peak() const { return multiply / longest(); }
    const char* reason() const;  // a stall's name in Nsight Compute
};
// multiply_adds: over all threads; the other counts are of warps.
Clocks clocks_of(double multiply_adds, double shared_turns, double requests, double sectors);

// The table for the rungs of the problem "product", which were observed on the CPU.
std::string stalls(const Problem& problem, const std::vector<KernelResult>& results);

}  // namespace ultrascale::kernels
