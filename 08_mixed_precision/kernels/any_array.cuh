// An array of any dtype, with a scale. The dtype is looked up at each access: all threads of a
// block take the same branch, and memory takes longer. Elements are loaded and stored four at a
// time where they lie in one pack.
#pragma once

#include "cuda/fp8.cuh"
#include "cuda/ops_common.cuh"

namespace ultrascale::ops {

struct Array {
    void* x;
    DType dtype;
    float* scale;  // null: 1
};
inline Array array_of(const Tensor& tensor, const Tensor& scale) {
    return {tensor.data(), tensor.dtype(), scale ? scale.as<float>() : nullptr};
}

// The words of four elements, or of the first of them, before they are converted: so a thread first
// starts the loads of all its arrays, and then converts them.
struct Loaded {
    uint32_t words[4];
};
template <class Words>
__device__ void load_words(Loaded& to, const void* from, int64_t i) {
    const Words words = static_cast<const Words*>(from)[i];
    memcpy(to.words, &words, sizeof words);
}
__device__ inline Loaded load_elements(const Array& a, int64_t i, bool packs) {
    Loaded loaded = {};
    const auto load = [&]<class Four, class One>(Four, One) {
        packs ? load_words<Four>(loaded, static_cast<const One*>(a.x) + i, 0)
              : load_words<One>(loaded, a.x, i);
    };
    switch (a.dtype) {
        case DType::fp32: load(Pack<uint32_t, 4>{}, uint32_t{}); break;
        case DType::bf16:
        case DType::fp16: load(Pack<uint32_t, 2>{}, uint16_t{}); break;
        default: load(uint32_t{}, uint8_t{});
    }
    return loaded;
}
template <class T>
__device__ void store_typed(T* to, const float (&from)[4], bool packs) {
    if (packs) {
        Pack<T, 4> pack;
#pragma unroll
        for (int j = 0; j < 4; ++j) pack.x[j] = from_float<T>(from[j]);
        store(to, pack);
    } else {
        to[0] = from_float<T>(from[0]);
    }
}
template <class Format, class Bits>
__device__ void store_rounded(Bits* to, const float (&from)[4],
                              const std::array<uint32_t, 4>& random, bool packs) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
        if (j == 0 || packs)
            to[j] = Bits(Format::encode_stochastic(from[j], random[size_t(j)], Overflow::saturate));
}

// Calls f(typed address of element i).
template <class F>
__device__ void with_array(const Array& a, int64_t i, const F& f) {
    switch (a.dtype) {
        case DType::fp32: return f(static_cast<float*>(a.x) + i);
        case DType::bf16: return f(static_cast<__nv_bfloat16*>(a.x) + i);
        case DType::fp16: return f(static_cast<__half*>(a.x) + i);
        case DType::e4m3: return f(static_cast<__nv_fp8_e4m3*>(a.x) + i);
        default: return f(static_cast<__nv_fp8_e5m2*>(a.x) + i);
    }
}
__device__ inline void convert(float (&to)[4], const Loaded& loaded, const Array& a, float scale) {
    with_array(a, 0, [&]<class T>(T*) {
        Pack<T, 4> pack;
        memcpy(&pack, loaded.words, sizeof pack);
#pragma unroll
        for (int j = 0; j < 4; ++j) to[j] = to_float(pack.x[j]) * scale;
    });
}
// Stores four elements, or only the first if they are not in one pack.
__device__ inline void store_scaled(const Array& a, const float (&from)[4], float scale, int64_t i,
                                    bool packs) {
    float x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = from[j] * (1.0f / scale);
    with_array(a, i, [&](auto* to) { store_typed(to, x, packs); });
}

__device__ inline float scale_of(const Array& a) { return a.scale ? *a.scale : 1.0f; }
__device__ inline bool fits(const Array& a, int64_t begin) {  // packs of four from there on
    const int bytes = a.dtype == DType::fp32                             ? 16
                      : a.dtype == DType::bf16 || a.dtype == DType::fp16 ? 8
                                                                         : 4;
    return (reinterpret_cast<uintptr_t>(a.x) + uintptr_t(begin) * (bytes / 4)) % bytes == 0;
}

}  // namespace ultrascale::ops
