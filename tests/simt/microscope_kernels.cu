#include "cuda/ops_common.cuh"
#include "microscope_kernels.h"

namespace ultrascale::test {

namespace {

__device__ int global_thread() { return int(blockIdx.x * blockDim.x + threadIdx.x); }

// ---- global memory ------------------------------------------------------------------------------
template <class T>
__global__ void copy_scalars(T* to, const T* from, int count, int stride, int offset) {
    const int i = global_thread();
    if (i >= count) return;
    const T x = from[i * stride + offset];
    to[i * stride + offset] = x;
}
__global__ void copy_float4(float4* to, const float4* from, int count) {
    if (const int i = global_thread(); i < count) to[i] = from[i];
}
__global__ void sum_float4(float* to, const float4* from, int count) {
    const int i = global_thread();
    if (i >= count) return;
    const float4 x = from[i];
    to[i] = x.x + x.y + x.z + x.w;
}
template <class T, int n>
__global__ void scale_packs(T* to, const T* from, int count) {
    const int i = global_thread() * n;
    if (i >= count) return;
    Pack<T, n> pack = load<n>(from + i);
    for (int j = 0; j < n; ++j) pack.x[j] = ops::from_float<T>(2 * ops::to_float(pack.x[j]));
    store(to + i, pack);
}
__global__ void cached_loads(float* to, const float* from) {
    const float x = __ldg(from + threadIdx.x);
    __stcs(to + threadIdx.x, __expf(x));
}
__global__ void broadcast(float* to, const float* from) { to[threadIdx.x] = from[7]; }
__global__ void some_lanes(float* to, const float* from) {
    const int lane = int(threadIdx.x % 32);
    if (lane < 8) to[threadIdx.x] = from[threadIdx.x];
}
__global__ void read_modify_write(float* x) { x[threadIdx.x] += 1; }
// Lane l executes the loop l + 1 times.
__global__ void different_trips(float* to, const float* from) {
    float sum = 0;
    for (unsigned i = 0; i <= threadIdx.x; ++i) sum += from[32 * i + threadIdx.x];
    to[threadIdx.x] = sum;
}
// Runs a loop three times whose length differs between lanes; the lanes meet after each.
__global__ void nested_trips(float* to, const float* from) {
    float sum = 0;
    for (int turn = 0; turn < 3; ++turn) {
        for (unsigned i = 0; i <= threadIdx.x % 2; ++i) sum += from[32 * i + threadIdx.x];
        sum = warp_sum(sum);
    }
    to[threadIdx.x] = sum;
}
__global__ void half_warps_apart(float* to, const float* from) {
    const uint32_t mask = threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u;
    float x = 0;
    for (int turn = 0; turn < 3; ++turn) {
        x += from[threadIdx.x];
        x += __shfl_xor_sync(mask, x, 1);
    }
    to[threadIdx.x] = x;
}
__global__ void long_loop(float* to, const float* from, int turns) {
    float sum = 0;
    for (int i = 0; i < turns; ++i) {
        sum += from[(i * int(blockDim.x) + int(threadIdx.x)) % 4096];
        if (threadIdx.x % 2 == 0) sum += from[threadIdx.x];
    }
    to[global_thread()] = sum;
}
struct Three {
    float a, b, c;
};
__global__ void struct_of_three(Three* to, const Three* from) {
    to[threadIdx.x] = from[threadIdx.x];
}
struct Unaligned {
    float x[4];
};
__global__ void unaligned_struct(Unaligned* to, const Unaligned* from) {
    to[threadIdx.x] = from[threadIdx.x];
}
__global__ void atomics_of_each_kind(float* sum) {
    __shared__ float block_sum;
    if (threadIdx.x == 0) block_sum = 0;
    __syncthreads();
    atomicAdd(&block_sum, 1.0f);
    __syncthreads();
    if (threadIdx.x < 4) atomicAdd(sum + threadIdx.x, block_sum);
}

// ---- shared memory ------------------------------------------------------------------------------
template <int pitch>
__global__ void transpose(float* to, const float* from) {
    __shared__ float tile[32][pitch];
    for (unsigned y = threadIdx.y; y < 32; y += blockDim.y)
        tile[y][threadIdx.x] = from[y * 32 + threadIdx.x];
    __syncthreads();
    for (unsigned y = threadIdx.y; y < 32; y += blockDim.y)
        to[y * 32 + threadIdx.x] = tile[threadIdx.x][y];
}
__global__ void shared_patterns(float* to) {
    DYNAMIC_SHARED(float, x);
    for (int i = int(threadIdx.x); i < 1024; i += 32) x[i] = 1;  // each its own bank
    __syncthreads();
    float sum = x[5];                // all the same
    sum += x[threadIdx.x * 2];       // every other bank, twice
    sum += x[threadIdx.x * 4];       // every fourth
    sum += x[threadIdx.x / 2];       // pairs
    sum += x[threadIdx.x % 2 * 32];  // two words of one bank
    to[threadIdx.x] = sum;
}
__global__ void shared_float4(float* to) {
    DYNAMIC_SHARED(float4, x);
    x[threadIdx.x] = make_float4(1, 2, 3, 4);
    __syncthreads();
    const float4 near = x[threadIdx.x ^ 1];
    const float2 half = reinterpret_cast<const float2*>(x)[threadIdx.x];
    const float4 far = x[threadIdx.x % 4 * 8];
    to[threadIdx.x] = near.x + half.y + far.z;
}

unsigned warps(int count) { return unsigned(count + 31) / 32; }
const float4* quads(const float* x) { return reinterpret_cast<const float4*>(x); }
float4* quads(float* x) { return reinterpret_cast<float4*>(x); }

}  // namespace

void launch_copy_floats(float* to, const float* from, int count, int stride, int offset) {
    LAUNCH(copy_scalars<float>, warps(count), 32, 0)(to, from, count, stride, offset);
}
void launch_copy_bf16(bf16* to, const bf16* from, int count) {
    LAUNCH(copy_scalars<bf16>, warps(count), 32, 0)(to, from, count, 1, 0);
}
void launch_copy_float4(float* to, const float* from, int count) {
    LAUNCH(copy_float4, warps(count), 32, 0)(quads(to), quads(from), count);
}
void launch_sum_float4(float* to, const float* from, int count) {
    LAUNCH(sum_float4, warps(count), 32, 0)(to, quads(from), count);
}
void launch_scale_packs(float* to, const float* from, int count) {
    LAUNCH((scale_packs<float, 4>), warps(count / 4), 32, 0)(to, from, count);
}
void launch_scale_packs_bf16(bf16* to, const bf16* from, int count) {
    LAUNCH((scale_packs<bf16, 8>), warps(count / 8), 32, 0)(to, from, count);
}
void launch_cached_loads(float* to, const float* from) { LAUNCH(cached_loads, 1, 32, 0)(to, from); }
void launch_broadcast(float* to, const float* from) { LAUNCH(broadcast, 1, 32, 0)(to, from); }
void launch_some_lanes(float* to, const float* from) { LAUNCH(some_lanes, 3, 64, 0)(to, from); }
void launch_read_modify_write(float* x) { LAUNCH(read_modify_write, 1, 32, 0)(x); }
void launch_different_trips(float* to, const float* from) {
    LAUNCH(different_trips, 1, 32, 0)(to, from);
}
void launch_nested_trips(float* to, const float* from) { LAUNCH(nested_trips, 1, 32, 0)(to, from); }
void launch_half_warps_apart(float* to, const float* from) {
    LAUNCH(half_warps_apart, 1, 32, 0)(to, from);
}
void launch_long_loop(float* to, const float* from, int turns, int blocks) {
    LAUNCH(long_loop, unsigned(blocks), 64, 0)(to, from, turns);
}
void launch_struct_of_three(float* to, const float* from) {
    LAUNCH(struct_of_three, 1, 32, 0)
    (reinterpret_cast<Three*>(to), reinterpret_cast<const Three*>(from));
}
void launch_unaligned_struct(float* to, const float* from) {
    LAUNCH(unaligned_struct, 1, 32, 0)
    (reinterpret_cast<Unaligned*>(to), reinterpret_cast<const Unaligned*>(from));
}
void launch_atomics_of_each_kind(float* sum, int threads) {
    LAUNCH(atomics_of_each_kind, 1, unsigned(threads), 0)(sum);
}

void launch_transpose_unpadded(float* to, const float* from) {
    LAUNCH(transpose<32>, 1, dim3(32, 8), 0)(to, from);
}
void launch_transpose_padded(float* to, const float* from) {
    LAUNCH(transpose<33>, 1, dim3(32, 8), 0)(to, from);
}
void launch_shared_patterns(float* to) { LAUNCH(shared_patterns, 1, 32, 1024 * sizeof(float))(to); }
void launch_shared_float4(float* to) { LAUNCH(shared_float4, 1, 32, 32 * sizeof(float4))(to); }

}  // namespace ultrascale::test
