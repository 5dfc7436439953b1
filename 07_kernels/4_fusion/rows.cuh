// Shared by this family's kernels. Each block works on one row: its threads load packs of the row,
// and reduce over the block:
//
//     a warp:   lane i exchanges with lane i ^ 16, i ^ 8, i ^ 4, i ^ 2, i ^ 1; after five steps
//               each lane has the sum of all 32
//     a block:  a warp's first lane leaves its sum in shared memory; after a barrier each warp
//               adds up what the warps (32 at most) left
//
// A kernel may call each reduction only once, because its shared memory is not free for a second
// call. Blocks must consist of whole warps.
#pragma once

#include <cuda_bf16.h>

#include <cfloat>

#include "../kernel.h"
#include "cuda/packs.cuh"
#include "cuda/warp.cuh"

namespace ultrascale::kernels::rows {

// n elements that one access moves: 8 (16 bytes, the widest access), or 1 where rows are not a
// multiple of 8. Functions take packs by value, so that a pack in memory is loaded whole: through a
// reference each element may become a load of its own.
template <int n>
using Pack = ultrascale::Pack<__nv_bfloat16, n>;

__device__ inline float block_sum(float x) {
    __shared__ float warp_sums[32];
    const unsigned lane = threadIdx.x % 32;
    x = warp_sum(x);
    if (lane == 0) warp_sums[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(lane < blockDim.x / 32 ? warp_sums[lane] : 0.0f);
}

// A row's statistics for softmax, in one pass (Milakov & Gimelshein 2018): the largest number so
// far, and the sum of exp(number - largest). When a larger number comes, one factor corrects the
// sum.
struct MaxSum {
    float max = -FLT_MAX, sum = 0;  // not -infinity: -infinity - -infinity is NaN

    // exercise 07.5 begin: when a larger number comes, one factor corrects the sum
    __device__ void add(const MaxSum& other) {
        const float larger = fmaxf(max, other.max);
        sum = sum * __expf(max - larger) + other.sum * __expf(other.max - larger);
        max = larger;
    }
    template <int n>
    __device__ void add(Pack<n> pack) {
        float larger = max;
#pragma unroll
        for (int j = 0; j < n; ++j) larger = fmaxf(larger, __bfloat162float(pack.x[j]));
        sum *= __expf(max - larger), max = larger;
#pragma unroll
        for (int j = 0; j < n; ++j) sum += __expf(__bfloat162float(pack.x[j]) - max);
    }
    // exercise 07.5 end
};

__device__ inline MaxSum warp_max_sum(MaxSum x) {
    for (int offset = 16; offset > 0; offset /= 2) {
        MaxSum other;
        other.max = __shfl_xor_sync(0xffffffffu, x.max, offset),
        other.sum = __shfl_xor_sync(0xffffffffu, x.sum, offset);
        x.add(other);
    }
    return x;
}

__device__ inline MaxSum block_max_sum(MaxSum x) {
    __shared__ float max_of_warp[32], sum_of_warp[32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x = warp_max_sum(x);
    if (lane == 0) max_of_warp[warp] = x.max, sum_of_warp[warp] = x.sum;
    __syncthreads();
    MaxSum all;
    if (lane < blockDim.x / 32) all.max = max_of_warp[lane], all.sum = sum_of_warp[lane];
    return warp_max_sum(all);
}

// ---- host ---------------------------------------------------------------------------------------
inline __nv_bfloat16* data(const Tensor& tensor) {
    check(tensor.dtype() == DType::bf16, "a tensor of bf16");
    return static_cast<__nv_bfloat16*>(tensor.data());
}

// The number of threads for a row of which each thread has `packs` packs: whole warps, 1024 at
// most.
inline unsigned threads_for(int64_t packs_of_row, int64_t packs) {
    return unsigned(std::min<int64_t>(ceil_div(ceil_div(packs_of_row, packs), 32) * 32, 1024));
}

}  // namespace ultrascale::kernels::rows

namespace ultrascale::kernels {

// y = x * rsqrt(mean(x²) + 1e-5) * weight, by the kernel of 5_rms_norm.cu.
void rms_norm(const Tensor& y, const Tensor& x, const Tensor& weight);
inline constexpr float rms_norm_epsilon = 1e-5f;

}  // namespace ultrascale::kernels
