// A row that a group of threads keeps in registers between RMSNorm's sum and its product, whatever
// becomes of the result. Private to common/cuda.
#pragma once

#include "ops_common.cuh"

namespace ultrascale::ops {

constexpr int packs_kept = 8;  // in each thread's registers

// Loads a row x of h elements, h at most group * packs_kept * n, and returns its rstd. Thread i of
// the group keeps packs i, i + group, ...; those after the row's end stay as they are.
template <int group, int n, class T>
__device__ float load_row(Pack<T, n> (&kept)[packs_kept], const T* x, float eps, int h) {
#pragma unroll
    for (int p = 0; p < packs_kept; ++p)
        if (const int i = (p * group + threadIdx.x) * n; i < h) kept[p] = load<n>(x + i);
    float squares = 0;
#pragma unroll
    for (int p = 0; p < packs_kept; ++p)
        if (const int i = (p * group + threadIdx.x) * n; i < h)
#pragma unroll
            for (int j = 0; j < n; ++j) squares += to_float(kept[p].x[j]) * to_float(kept[p].x[j]);
    if constexpr (group == 32)
        squares = warp_sum(squares);
    else
        squares = block_sum<group>(squares);
    return 1.0f / sqrtf(squares / float(h) + eps);
}

}  // namespace ultrascale::ops
