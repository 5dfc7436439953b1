#include "cuda/ops_common.cuh"
#include "kernels.h"

namespace ultrascale::test {

namespace {

__global__ void indices(int* out) {
    const unsigned block = blockIdx.x + blockIdx.y * gridDim.x;
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] =
        int(((blockIdx.y * 10 + blockIdx.x) * 10 + threadIdx.z) * 10000 + threadIdx.y * 100 +
            threadIdx.x);
}

__global__ void block_sums(float* sums, const float* x, int count) {
    __shared__ float warp_sums[4];
    DYNAMIC_SHARED(float, all);
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    all[blockDim.x - 1 - threadIdx.x] = i < count ? x[i] : 0.0f;
    __syncthreads();
    const float sum = warp_sum(all[threadIdx.x]);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        sums[blockIdx.x] = warp_sums[0] + warp_sums[1] + warp_sums[2] + warp_sums[3];
}

__global__ void warp_operations(int* out) {
    const int lane = int(threadIdx.x);
    int* mine = out + 8 * lane;
    mine[0] = __shfl_sync(~0u, lane * lane, 5);
    mine[1] = __shfl_xor_sync(~0u, lane, 3);
    mine[2] = __shfl_down_sync(~0u, lane, 2);
    mine[3] = __shfl_up_sync(~0u, lane, 2);
    mine[4] = int(__ballot_sync(~0u, lane % 3 == 0));
    mine[5] = __any_sync(~0u, lane == 31) * 2 + __all_sync(~0u, lane < 31);
    mine[6] = __reduce_max_sync(~0u, (lane * 7) % 32);
    mine[7] = __shfl_xor_sync(~0u, lane, 3, 4) + 100 * __shfl_sync(~0u, lane, 1, 8);
}

// The halves of a warp take different branches, each with a mask of its own.
__global__ void half_warps(int* out) {
    const int lane = int(threadIdx.x);
    if (lane < 16)
        out[lane] = __shfl_xor_sync(0x0000ffffu, lane, 1);
    else
        for (int turn = 0; turn < 3; ++turn) out[lane] = __shfl_sync(0xffff0000u, lane + turn, 31);
    __syncwarp();
    out[32 + lane] = int(__ballot_sync(~0u, out[lane] > 15));
}

__global__ void atomics(int* counter, float* sum) {
    atomicAdd(counter, 1);
    atomicAdd(sum, 0.5f);
}

__global__ void missed_barrier() {
    if (threadIdx.x < 32) __syncthreads();
    if (threadIdx.x == 40) __syncwarp();  // the other lanes have left
}
__global__ void ended_threads() {
    if (threadIdx.x >= 40) return;
    __syncthreads();
}
__global__ void missed_shuffle() {
    if (threadIdx.x == 7) return;
    __shfl_sync(~0u, 1, 0);
}
__global__ void different_shuffles() {
    if (threadIdx.x < 16)
        __shfl_sync(~0u, 1, 0);
    else
        __ballot_sync(~0u, true);
}
__global__ void foreign_mask() { __ballot_sync(1u, true); }
__global__ void from_outside(int* out) {
    if (threadIdx.x < 4) out[threadIdx.x] = __shfl_sync(0xfu, 1, 9);
}
__global__ void copy(float* to, const float* from, int count) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) to[i] = from[i];
}
__global__ void past_shared(int floats) {
    DYNAMIC_SHARED(float, x);
    x[int(threadIdx.x) + floats - 32] = 1;
}
__global__ void null(const int* nowhere) {
    if (*nowhere == 1) __syncthreads();
}
__global__ void vectors(float* to, const float* from) {
    const float4 four = *reinterpret_cast<const float4*>(from + 4 * threadIdx.x);
    *reinterpret_cast<float2*>(to + 2 * threadIdx.x) =
        make_float2(four.x + four.y, four.z + four.w);
}
__global__ void nothing() {}
__global__ void past_array(int floats) {
    __shared__ float tile[32];
    tile[int(threadIdx.x) + floats - 32] = 1;
    if (tile[threadIdx.x] == 2) __syncthreads();
}
__global__ void unwritten(float* out) {
    __shared__ float some[32];
    if (threadIdx.x % 2 == 0) some[threadIdx.x] = 1;
    __syncthreads();
    out[32 * blockIdx.x + threadIdx.x] = some[threadIdx.x];
    __syncthreads();
    some[threadIdx.x] = 2;
}
// This array may be adjacent to past_array's.
__global__ void another_array(int* out) {
    __shared__ int other[32];
    other[threadIdx.x] = int(threadIdx.x);
    __syncthreads();
    out[threadIdx.x] = other[31 - threadIdx.x];
}

}  // namespace

void launch_indices(int* out, int grid_x, int grid_y, int block_x, int block_y, int block_z) {
    LAUNCH(indices, dim3(unsigned(grid_x), unsigned(grid_y)),
           dim3(unsigned(block_x), unsigned(block_y), unsigned(block_z)), 0)
    (out);
}
void launch_block_sums(float* sums, const float* x, int count, int blocks) {
    LAUNCH(block_sums, unsigned(blocks), 128, 128 * sizeof(float))(sums, x, count);
}
void launch_warp_operations(int* out) { LAUNCH(warp_operations, 1, 32, 0)(out); }
void launch_half_warps(int* out) { LAUNCH(half_warps, 1, 32, 0)(out); }
void launch_atomics(int* counter, float* sum, int blocks) {
    LAUNCH(atomics, unsigned(blocks), 64, 0)(counter, sum);
}

void launch_barrier_that_half_the_block_misses() { LAUNCH(missed_barrier, 1, 64, 0)(); }
void launch_barrier_after_threads_have_ended() { LAUNCH(ended_threads, 1, 64, 0)(); }
void launch_shuffle_that_a_lane_misses() { LAUNCH(missed_shuffle, 1, 32, 0)(); }
void launch_shuffle_of_different_kinds() { LAUNCH(different_shuffles, 1, 32, 0)(); }
void launch_mask_without_its_caller() { LAUNCH(foreign_mask, 1, 32, 0)(); }
void launch_shuffle_from_outside_the_mask(int* out) { LAUNCH(from_outside, 1, 32, 0)(out); }
void launch_copy(float* to, const float* from, int count) {
    LAUNCH(copy, unsigned(count + 31) / 32, 32, 0)(to, from, count);
}
void launch_write_past_shared_memory(int floats) {
    LAUNCH(past_shared, 1, 64, size_t(floats) * sizeof(float))(floats);
}
void launch_read_null() { LAUNCH(null, 1, 1, 0)(nullptr); }
void launch_too_many_threads() { LAUNCH(foreign_mask, 1, 1025, 0)(); }
void launch_write_past_shared_array(int floats) { LAUNCH(past_array, 1, 64, 0)(floats); }
void launch_another_array(int* out) { LAUNCH(another_array, 1, 32, 0)(out); }
void launch_unwritten(float* out, int blocks) { LAUNCH(unwritten, unsigned(blocks), 32, 0)(out); }
void launch_vectors(float* to, const float* from) { LAUNCH(vectors, 1, 8, 0)(to, from); }
void launch_nothing(Size grid, Size block, size_t shared_bytes) {
    const cudaLaunchConfig_t config = {dim3(grid[0], grid[1], grid[2]),
                                       dim3(block[0], block[1], block[2]),
                                       shared_bytes,
                                       {},
                                       {},
                                       0};
    cudaLaunchKernelEx(&config, nothing);
}

}  // namespace ultrascale::test
