// What a kernel's memory accesses cost, by a model: the rank of a kernel where there is no clock.
//
//     cost    = max(memory, shared memory), over what memory needs for the problem's least bytes
//     memory  = 32 bytes for each sector that is loaded or stored,
//               32 bytes for each thread's atomic operation, which are done one after another
//     shared memory = 16 bytes for each turn (wavefront) of its banks, so bank conflicts count
//
// Both memories work at the same time, so the slower one is waited for, as in the roofline; of
// several kernels that follow each other the costs are added up. 1 is perfect. The 16 bytes: an
// H200 moves 4.24 TB/s, which is 16 bytes a clock (1.98 GHz) for each of its 132 SMs, and in a
// clock an SM's shared memory takes one turn. So while one sector comes from memory, two turns go
// by.
//
// Measured on that H200, transpose_naive takes 6.0 times and transpose_shared 1.85 times as long as
// transpose_padded; the model says 4.50 and 2.06. It knows no caches, no arithmetic, no latency and
// no launches, and that atomic operations on one address cost more than others: kernels that it
// calls level may differ on a GPU.
#pragma once

#include <string>

namespace ultrascale::kernels {

struct Cost {
    double total = 0;               // this ranks; 0: not observed
    double memory = 0, shared = 0;  // what the two take by themselves, in the same unit
    double atomics = 0;             // threads' operations on global memory
    std::string conflicts = {};  // the shared accesses that lose most turns: "loads", "stores", ...
    double turns = 0, at_best = 0;  // of one request among those, and without bank conflicts
};
inline constexpr double sector_bytes = 32, turn_bytes = 16;

}  // namespace ultrascale::kernels
