#include "cuda/ops_common.cuh"
#include "race_kernels.h"

namespace ultrascale::test {

namespace {

template <bool correct>
__global__ void read_after_write(float* to, const float* from) {
    DYNAMIC_SHARED(float, x);
    x[threadIdx.x] = from[threadIdx.x];
    if constexpr (correct) __syncthreads();
    to[threadIdx.x] = x[(threadIdx.x + 32) % blockDim.x];
}
template <bool correct>
__global__ void write_after_read(float* to, const float* from) {
    __shared__ float x[64];
    float sum = 0;
    for (int turn = 0; turn < 2; ++turn) {
        x[threadIdx.x] = from[64 * turn + int(threadIdx.x)];
        __syncthreads();
        sum += x[63 - threadIdx.x];
        if constexpr (correct) __syncthreads();
    }
    to[threadIdx.x] = sum;
}
template <bool correct>
__global__ void write_after_write(float* to) {
    DYNAMIC_SHARED(float, x);
    x[correct ? threadIdx.x : threadIdx.x / 2] = float(threadIdx.x);
    __syncthreads();
    to[threadIdx.x] = x[threadIdx.x / 2];
}
__global__ void write_of_the_same(float* to) {
    __shared__ float flag;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x % 3 == 0) flag = 1;
    __syncthreads();
    to[threadIdx.x] = flag;
}
template <bool correct>
__global__ void warp_reduction(float* to, const float* from) {
    __shared__ float x[64];
    const unsigned lane = threadIdx.x % 32;
    x[threadIdx.x] = from[threadIdx.x];
    for (unsigned offset = 16; offset > 0; offset /= 2) {
        if constexpr (correct) __syncwarp();
        const float other = lane < offset ? x[threadIdx.x + offset] : 0;
        if (lane < offset) x[threadIdx.x] += other;
    }
    if (lane == 0) to[threadIdx.x / 32] = x[threadIdx.x];
}
__global__ void warp_reduction_by_shuffle(float* to, const float* from) {
    __shared__ float x[32];
    x[threadIdx.x] = from[threadIdx.x];
    const bool all = __all_sync(~0u, true);
    to[threadIdx.x] = all ? x[threadIdx.x ^ 1] : 0;
}
__global__ void neighbouring_bytes(float* to) {
    __shared__ bf16 x[64];
    __shared__ unsigned char y[64];
    x[threadIdx.x] = __float2bfloat16_rn(float(threadIdx.x));
    y[threadIdx.x] = static_cast<unsigned char>(threadIdx.x);
    const float mine = __bfloat162float(x[threadIdx.x]);
    __syncthreads();
    to[threadIdx.x] = mine + float(y[threadIdx.x ^ 1]);
}
template <bool correct>
__global__ void counter(int* to) {
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    atomicAdd(&count, 1);
    if constexpr (correct) __syncthreads();
    if (threadIdx.x == 40) *to = count;
}
__global__ void across_warps_with_syncwarp(float* to, const float* from) {
    __shared__ float x[64];
    x[threadIdx.x] = from[threadIdx.x];
    __syncwarp();
    to[threadIdx.x] = x[threadIdx.x ^ 1] + x[threadIdx.x ^ 32];
}
// Lane 0 meets lane 1, which then meets lane 2. So lane 2 may read what lane 0 wrote.
template <bool correct>
__global__ void chain_of_syncwarps(float* to) {
    __shared__ float x;
    if (threadIdx.x == 0) x = 1;
    if (threadIdx.x < 2) __syncwarp(0x3);
    if (correct && (threadIdx.x == 1 || threadIdx.x == 2)) __syncwarp(0x6);
    if (threadIdx.x == 2) to[0] = x;
}
// All threads of all warps read one word, and one of them writes it.
template <bool correct>
__global__ void many_readers(float* to) {
    DYNAMIC_SHARED(float, x);
    if (threadIdx.x == 0) x[0] = 1;
    __syncthreads();
    to[threadIdx.x] = x[0];
    if constexpr (correct) __syncthreads();
    if (threadIdx.x == 77) x[0] = 2;
}
// Copies structs, whose write is reported before the read; each thread writes its place twice.
__global__ void copied_structs(float4* to, const float4* from) {
    __shared__ float4 x[32];
    x[threadIdx.x] = from[threadIdx.x];
    x[threadIdx.x] = from[threadIdx.x + 32];
    __syncthreads();
    to[threadIdx.x] = x[31 - threadIdx.x];
}

struct Three {
    float a, b, c;
};
__global__ void colliding_structs(Three* to, const Three* from) {
    __shared__ Three x[16];
    x[threadIdx.x / 2] = from[threadIdx.x];
    __syncthreads();
    to[threadIdx.x] = x[threadIdx.x / 2];
}

}  // namespace

void launch_read_after_write(float* to, const float* from, bool correct) {
    LAUNCH(correct ? read_after_write<true> : read_after_write<false>, 2, 64, 64 * sizeof(float))
    (to, from);
}
void launch_write_after_read(float* to, const float* from, bool correct) {
    LAUNCH(correct ? write_after_read<true> : write_after_read<false>, 1, 64, 0)(to, from);
}
void launch_write_after_write(float* to, bool correct) {
    LAUNCH(correct ? write_after_write<true> : write_after_write<false>, 1, 64, 64 * sizeof(float))
    (to);
}
void launch_write_of_the_same(float* to) { LAUNCH(write_of_the_same, 1, 64, 0)(to); }
void launch_warp_reduction(float* to, const float* from, bool correct) {
    LAUNCH(correct ? warp_reduction<true> : warp_reduction<false>, 1, 64, 0)(to, from);
}
void launch_warp_reduction_by_shuffle(float* to, const float* from) {
    LAUNCH(warp_reduction_by_shuffle, 1, 32, 0)(to, from);
}
void launch_neighbouring_bytes(float* to) { LAUNCH(neighbouring_bytes, 1, 64, 0)(to); }
void launch_counter(int* to, bool correct) {
    LAUNCH(correct ? counter<true> : counter<false>, 1, 64, 0)(to);
}
void launch_across_warps_with_syncwarp(float* to, const float* from) {
    LAUNCH(across_warps_with_syncwarp, 1, 64, 0)(to, from);
}
void launch_chain_of_syncwarps(float* to, bool correct) {
    LAUNCH(correct ? chain_of_syncwarps<true> : chain_of_syncwarps<false>, 1, 32, 0)(to);
}
void launch_many_readers(float* to, bool correct) {
    LAUNCH(correct ? many_readers<true> : many_readers<false>, 1, 128, 4)(to);
}
void launch_colliding_structs(float* to, const float* from) {
    LAUNCH(colliding_structs, 1, 32, 0)
    (reinterpret_cast<Three*>(to), reinterpret_cast<const Three*>(from));
}
void launch_copied_structs(float* to, const float* from) {
    LAUNCH(copied_structs, 1, 32, 0)
    (reinterpret_cast<float4*>(to), reinterpret_cast<const float4*>(from));
}

}  // namespace ultrascale::test
