// Estimates the cost of a kernel's memory accesses, to rank kernels where there is no clock.
//
//     cost    = max(memory, shared memory), over what memory needs for the problem's least bytes
//     memory  = 32 bytes for each sector that is loaded or stored,
//               32 bytes for each thread's atomic operation, which are done one after another
//     shared memory = 16 bytes for each turn (wavefront) of its banks, so bank conflicts count
//
// Both memories work at the same time, so the slower one decides, as in the roofline. Where several
// kernels follow each other, their costs are added up. 1 is perfect. The 16 bytes: an H200 moves
// 4.24 TB/s, which is 16 bytes per clock (1.98 GHz) for each of its 132 SMs, and an SM's shared
// memory takes one turn per clock. So shared memory takes two turns in the time of one sector.
//
// Measured on that H200, transpose_naive takes 6.0 times and transpose_shared 1.85 times as long as
// transpose_padded; the estimate says 4.50 and 2.06. It ignores caches, arithmetic, latency and
// launches, and the higher cost of atomic operations on the same address. Kernels that it ranks
// equal may differ on a GPU.
#pragma once

#include <string>

namespace ultrascale::kernels {

struct Cost {
    double total = 0;               // kernels are ranked by this; 0: not observed
    double memory = 0, shared = 0;  // the time that each takes by itself, in the same unit
    double atomics = 0;             // threads' operations on global memory
    std::string conflicts = {};     // shared accesses that lose most turns: "loads", "stores", ...
    double turns = 0, at_best = 0;  // turns per request of these; at best: without bank conflicts
};
inline constexpr double sector_bytes = 32, turn_bytes = 16;

}  // namespace ultrascale::kernels
