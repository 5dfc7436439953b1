// Reductions over a warp: lane i exchanges with lane i ^ 16, i ^ 8, i ^ 4, i ^ 2, i ^ 1; after five
// steps each lane has the result of all 32.
#pragma once

#include <cuda_runtime.h>

namespace ultrascale {

template <class T>
__device__ T warp_sum(T x) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
__device__ inline float warp_max(float x) {
    for (int offset = 16; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

}  // namespace ultrascale
