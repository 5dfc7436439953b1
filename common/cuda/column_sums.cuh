// The last step of a norm's weight gradient: adds the blocks' sums in order. Private to
// common/cuda.
#pragma once

#include "ops_common.cuh"

namespace ultrascale::ops {

// dweight (h) = the sum of the rows of partial (blocks, h), and what it was if `add`. A block adds
// 32 columns: each of its 32 rows of threads adds every 32nd row of partial, and then the 32
// results are added in order.
__device__ inline float column_sum(const float* partial, int blocks, int64_t h, int64_t column) {
    __shared__ float sums[32][33];
    float sum = 0;
    if (column < h)
#pragma unroll 8
        for (int b = threadIdx.y; b < blocks; b += 32) sum += partial[b * h + column];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < 32; ++i) sum += sums[i][threadIdx.x];
    return sum;
}
template <class W>
__global__ void __launch_bounds__(1024)
    add_partials(W* dweight, const float* partial, int blocks, int64_t h, bool add) {
    const int64_t column = int64_t(blockIdx.x) * 32 + threadIdx.x;
    wait_for_kernel_before();
    const float sum = column_sum(partial, blocks, h, column);
    if (threadIdx.y == 0 && column < h)
        dweight[column] = from_float<W>((add ? to_float(dweight[column]) : 0.0f) + sum);
}

}  // namespace ultrascale::ops
