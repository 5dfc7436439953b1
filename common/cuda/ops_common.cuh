// Shared by the CUDA operations: dispatch on the element type, loads into shared memory, and sums
// over a block. Private to common/cuda/ops_*.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_pipeline_primitives.h>

#include "core/ops.h"
#include "core/trace.h"
#include "cuda_common.h"
#include "packs.cuh"
#include "warp.cuh"

namespace ultrascale::ops {

// Calls f(float{}), f(__nv_bfloat16{}) or f(__half{}), depending on the dtype.
template <class F>
void with_type(DType dtype, F&& f) {
    check(dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16,
          "operation on another dtype than fp32, bf16 and fp16");
    if (dtype == DType::fp32)
        f(float{});
    else if (dtype == DType::bf16)
        f(__nv_bfloat16{});
    else
        f(__half{});
}
// Calls f for __nv_fp8_e4m3 and __nv_fp8_e5m2 as well, which most operations do not take.
template <class F>
void with_any_float(DType dtype, F&& f) {
    if (dtype == DType::e4m3)
        f(__nv_fp8_e4m3{});
    else if (dtype == DType::e5m2)
        f(__nv_fp8_e5m2{});
    else
        with_type(dtype, f);
}

// The tensor's address on the device as a pointer to T, the type that with_type chose.
template <class T>
T* data(const Tensor& tensor) {
    check(int64_t(sizeof(T)) == dtype_bytes(tensor.dtype()),
          "tensor read as another dtype than its own");
    return static_cast<T*>(tensor.data());
}

template <class... Tensors>
double bytes_of(const Tensors&... tensors) {
    return (0.0 + ... + double(tensors.bytes()));
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Copies a list of plain structs to workspace memory on the device. `list` may be freed when it
// returns.
template <class Item>
Tensor list_on_device(const std::vector<Item>& list) {
    return constant_on_device(list.data(), int64_t(list.size() * sizeof(Item)));
}

// ---- on the device ------------------------------------------------------------------------------

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_fp8_e4m3 x) { return float(x); }
__device__ inline float to_float(__nv_fp8_e5m2 x) { return float(x); }
// What clipping to the global norm max_norm (0: none) multiplies a gradient by.
__device__ inline float clip_factor(const double* squared_norm, double max_norm) {
    return max_norm > 0 ? float(fmin(1.0, max_norm / (sqrt(*squared_norm) + 1e-6))) : 1.0f;
}
template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
    return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half from_float<__half>(float x) {
    return __float2half_rn(x);
}
template <>  // saturates, and so does e5m2
__device__ inline __nv_fp8_e4m3 from_float<__nv_fp8_e4m3>(float x) {
    return __nv_fp8_e4m3(x);
}
template <>
__device__ inline __nv_fp8_e5m2 from_float<__nv_fp8_e5m2>(float x) {
    return __nv_fp8_e5m2(x);
}

// A pack's elements as floats, and floats as a pack's elements. bf16 is converted in pairs: a GPU
// rounds two numbers into a register at full rate, but a single number at a quarter of it; and the
// compiler does not spread a pack that is read as words over twice as many registers.
template <int n, class T>
__device__ void to_floats(float (&to)[n], const Pack<T, n>& from) {
    if constexpr (std::is_same_v<T, __nv_bfloat16> && n % 2 == 0) {
#pragma unroll
        for (int j = 0; j < n; j += 2) {
            const uint32_t two = reinterpret_cast<const uint32_t&>(from.x[j]);
            to[j] = __uint_as_float(two << 16), to[j + 1] = __uint_as_float(two & 0xffff0000u);
        }
    } else
#pragma unroll
        for (int j = 0; j < n; ++j) to[j] = to_float(from.x[j]);
}
template <class T, int n>
__device__ Pack<T, n> from_floats(const float (&from)[n]) {
    Pack<T, n> to;
    if constexpr (std::is_same_v<T, __nv_bfloat16> && n % 2 == 0) {
#pragma unroll
        for (int j = 0; j < n; j += 2)
            reinterpret_cast<__nv_bfloat162&>(to.x[j]) =
                __floats2bfloat162_rn(from[j], from[j + 1]);
    } else
#pragma unroll
        for (int j = 0; j < n; ++j) to.x[j] = from_float<T>(from[j]);
    return to;
}

// Copies n elements to shared memory while the thread continues (cp.async), so that far more bytes
// are in flight than registers could hold. This thread may read them when __pipeline_wait_prior has
// waited for their __pipeline_commit.
template <int n, class T>
__device__ void load_async(T* shared, const T* from) {
    if constexpr (n * sizeof(T) >= 4)
        __pipeline_memcpy_async(shared, from, n * sizeof(T));
    else
        store(shared, load<n>(from));
}

// Whether rows of `columns` elements of T that begin at these addresses can be read 16 bytes at a
// time.
template <class T>
bool packs_fit(int64_t columns, std::initializer_list<const void*> addresses) {
    bool fit = columns * int64_t(sizeof(T)) % 16 == 0;
    for (const void* address : addresses)
        fit = fit && reinterpret_cast<uintptr_t>(address) % 16 == 0;
    return fit;
}

template <class T>
inline constexpr int pack_size = 16 / int(sizeof(T));

// Whether these addresses are multiples of 16. That is enough for a kernel that handles the last,
// incomplete pack element by element.
inline bool aligned16(std::initializer_list<const void*> addresses) {
    return packs_fit<char>(0, addresses);
}

// Loads or stores n floats in accesses of up to 16 bytes: for fp32 tables and sums that accompany
// packs of n bf16.
template <int n>
__device__ void load_floats(float (&to)[n], const float* from) {
    constexpr int width = n < 4 ? n : 4;
#pragma unroll
    for (int i = 0; i < n; i += width) {
        const Pack<float, width> part = load<width>(from + i);
#pragma unroll
        for (int j = 0; j < width; ++j) to[i + j] = part.x[j];
    }
}
template <int n>
__device__ void store_floats(float* to, const float (&from)[n]) {
    constexpr int width = n < 4 ? n : 4;
#pragma unroll
    for (int i = 0; i < n; i += width) {
        Pack<float, width> part;
#pragma unroll
        for (int j = 0; j < width; ++j) part.x[j] = from[i + j];
        store(to + i, part);
    }
}

// The kernels use base-2 exponents: exp(x) = 2^(x log2_e).
inline constexpr float log2_e = 1.44269504f;
// 2^x in one instruction of the special function unit; results below 2^-126 become 0. Relative
// error below 2^-22.
__device__ inline float exp2_fast(float x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}
// Converts a log-sum-exp to base 2, so that 2^(score log2_e - result) is a probability. A row
// without keys gets infinity, which makes its probabilities 0.
__device__ inline float log2_sum_of(float lse) {
    return lse == -INFINITY ? INFINITY : lse * log2_e;
}

// Every thread gets the sum of x over the block, which has `threads` threads (a multiple of 32). It
// is always added in the same order.
template <int threads, class T>
__device__ T block_sum(T x) {
    __shared__ T partial[threads / 32];
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    T sum = 0;
    for (int w = 0; w < threads / 32; ++w) sum += partial[w];
    __syncthreads();  // partial may be reused
    return sum;
}

// Every thread gets the maximum. A kernel may call it only once: no barrier protects its shared
// memory from a second call.
template <int threads>
__device__ float block_max(float x) {
    __shared__ float partial[threads / 32];
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    for (int w = 0; w < threads / 32; ++w) x = fmaxf(x, partial[w]);
    return x;
}

// The list item that a block works on: the last one whose first_chunk is not past `chunk`. Items
// are in the order of their first chunks; an empty item has its successor's first chunk and is
// never found.
template <class Item>
__device__ int item_of_chunk(const Item* items, int count, int64_t chunk) {
    int low = 0, high = count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (items[middle].first_chunk <= chunk)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

}  // namespace ultrascale::ops
