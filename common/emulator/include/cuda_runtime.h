// Stands in for CUDA's header where kernels run on the CPU (../simt.h): the part of it that this
// project's kernels use. Names and meanings are CUDA's (CUDA C++ Programming Guide, "C++ Language
// Extensions"; CUDA Math API).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulator/simt.h"

// All functions that it calls are inlined, as CUDA's compiler does, so each load has its own
// address.
#define __global__ __attribute__((flatten))
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// A core runs one block at a time, so the block shares a variable of the core. constinit: no code
// initializes it at its first use. The tag becomes part of its name in the symbol table, where
// shared_arrays.cpp looks for it.
#define __shared__ __attribute__((abi_tag("shared"))) thread_local constinit

inline constexpr int warpSize = simt::warp_size;

// ---- vectors ------------------------------------------------------------------------------------
// clang-format off
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
// clang-format on
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// ---- a block's and a warp's threads together ----------------------------------------------------
#define __syncthreads() ::simt::sync_block()

namespace simt {

template <class T>
uint64_t to_bits(T value) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    return bits;
}
template <class T>
T from_bits(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}
inline uint32_t ballot(const Lanes& votes, uint32_t mask) {
    uint32_t result = 0;
    for (int i = 0; i < warp_size; ++i)
        if (mask >> i & 1 && votes.values[i]) result |= 1u << i;
    return result;
}
// Returns the value of lane `source`.
template <class T>
[[gnu::always_inline]] inline T shuffled(uint32_t mask, T value, int source, const char* what) {
    return from_bits<T>(shuffle(mask, to_bits(value), source, what));
}

}  // namespace simt

#define __syncwarp(...) \
    static_cast<void>(::simt::exchange(::simt::mask_or_all(__VA_ARGS__), 0, "__syncwarp"))
namespace simt {
inline uint32_t mask_or_all(uint32_t mask = ~0u) { return mask; }
}  // namespace simt

template <class T>
[[gnu::always_inline]] inline T __shfl_sync(uint32_t mask, T value, int lane,
                                            int width = warpSize) {
    return simt::shuffled(mask, value, simt::lane() / width * width + lane % width, "__shfl_sync");
}
template <class T>
[[gnu::always_inline]] inline T __shfl_xor_sync(uint32_t mask, T value, int lanes,
                                                int width = warpSize) {
    const int self = simt::lane(), source = self ^ lanes;
    return simt::shuffled(mask, value, source / width == self / width ? source : self,
                          "__shfl_xor_sync");
}
template <class T>
[[gnu::always_inline]] inline T __shfl_down_sync(uint32_t mask, T value, unsigned lanes,
                                                 int width = warpSize) {
    const int self = simt::lane(), source = self + int(lanes);
    return simt::shuffled(mask, value, source / width == self / width ? source : self,
                          "__shfl_down_sync");
}
template <class T>
[[gnu::always_inline]] inline T __shfl_up_sync(uint32_t mask, T value, unsigned lanes,
                                               int width = warpSize) {
    const int self = simt::lane(), source = self - int(lanes);
    return simt::shuffled(mask, value, self % width >= int(lanes) ? source : self,
                          "__shfl_up_sync");
}
[[gnu::always_inline]] inline uint32_t __ballot_sync(uint32_t mask, bool vote) {
    return simt::ballot(simt::exchange(mask, vote, "__ballot_sync"), mask);
}
[[gnu::always_inline]] inline int __any_sync(uint32_t mask, bool vote) {
    return __ballot_sync(mask, vote) != 0;
}
[[gnu::always_inline]] inline int __all_sync(uint32_t mask, bool vote) {
    return __ballot_sync(mask, vote) == mask;
}
template <class T>
[[gnu::always_inline]] inline T __reduce_max_sync(uint32_t mask, T value) {
    const simt::Lanes lanes = simt::exchange(mask, simt::to_bits(value), "__reduce_max_sync");
    for (int i = 0; i < warpSize; ++i)
        if (mask >> i & 1) value = std::max(value, simt::from_bits<T>(lanes.values[i]));
    return value;
}
template <class T>
[[gnu::always_inline]] inline T __reduce_min_sync(uint32_t mask, T value) {
    const simt::Lanes lanes = simt::exchange(mask, simt::to_bits(value), "__reduce_min_sync");
    for (int i = 0; i < warpSize; ++i)
        if (mask >> i & 1) value = std::min(value, simt::from_bits<T>(lanes.values[i]));
    return value;
}
template <class T>
T atomicAdd(T* address, std::type_identity_t<T> x) {
    return simt::atomic_add(address, x);
}
inline unsigned atomicMax(unsigned* address, unsigned x) { return simt::atomic_max(address, x); }

// ---- arithmetic ---------------------------------------------------------------------------------
using std::max;
using std::min;
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(unsigned(x)) + 1; }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
// With cache hints on a GPU; here ordinary loads and stores.
template <class T>
T __ldg(const T* from) {
    return *from;
}
template <class T>
T __ldcs(const T* from) {
    return *from;
}
template <class T>
void __stcs(T* to, T value) {
    *to = value;
}

// ---- the host's side ----------------------------------------------------------------------------
using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0 };
enum cudaMemcpyKind {
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t) {
    std::memmove(to, from, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int) {
    return cudaSuccess;
}
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute* attrs;
    unsigned numAttrs;
};
template <class... Parameters>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               std::type_identity_t<Parameters>... arguments) {
    const auto call = [=] { kernel(arguments...); };
    simt::launch({[](const void* closure) { (*static_cast<const decltype(call)*>(closure))(); },
                  &call, sizeof call, reinterpret_cast<const void*>(kernel)},
                 config->gridDim, config->blockDim, config->dynamicSmemBytes);
    return cudaSuccess;
}
