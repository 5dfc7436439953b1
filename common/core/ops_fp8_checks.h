// Shared by both backends' operations in 8 bits: the scale of a group, and checks of the arguments.
// Private to common/cpu and common/cuda.
#pragma once

#include <algorithm>
#include <bit>

#include "ops_fp8.h"

namespace ultrascale::ops {

// The scale of a group with this amax. A lower limit keeps 1 / scale finite; with it a group of
// zeros becomes zeros. To round up to a power of two, take the next exponent unless the mantissa is
// zero.
constexpr float scale_for(float amax, float largest, bool power_of_two) {
    const float scale = (amax > 1e-30f ? amax : 1e-30f) / largest;
    if (!power_of_two) return scale;
    return std::bit_cast<float>((std::bit_cast<uint32_t>(scale) + 0x007fffffu) & 0x7f800000u);
}

// Calls f(E4m3{}) or f(E5m2{}), the backend's types of the formats.
template <class E4m3, class E5m2, class F>
void with_format(DType dtype, F&& f) {
    check(dtype == DType::e4m3 || dtype == DType::e5m2, "fp8 is e4m3 or e5m2");
    if (dtype == DType::e4m3)
        f(E4m3{});
    else
        f(E5m2{});
}

constexpr int64_t blocks_of(int64_t n) { return (n + scale_block - 1) / scale_block; }

// The index of the scale for elements 128 j .. 128 j + 127 of row r.
constexpr int64_t scale_index(ScaleGroup group, int64_t r, int64_t j, int64_t R, int64_t C) {
    switch (group) {
        case ScaleGroup::tensor: return 0;
        case ScaleGroup::row: return r;
        case ScaleGroup::tile: return j * R + r;
        case ScaleGroup::block: return r / scale_block * blocks_of(C) + j;
    }
    return 0;
}

inline double bytes_in(const Quantised& q) {
    return q ? double(q.values.bytes() + q.scales.bytes()) : 0;
}

inline void check_quantised(const Quantised& q, int64_t R, int64_t C, ScaleGroup group,
                            const char* wrong) {
    check(q.values.numel() == R * C && (R == 0 || q.values.cols() == C), wrong);
    check(q.values.dtype() == DType::e4m3 || q.values.dtype() == DType::e5m2, wrong);
    check(q.scales.numel() == numel(scales_shape(R, C, group)) && q.scales.dtype() == DType::fp32,
          wrong);
}
inline void check_quantise(const Quantised& y, const Quantised& transposed, int64_t R, int64_t C,
                           const Scaling& scaling, const Tensor& amax) {
    check(!scaling.given || scaling.group == ScaleGroup::tensor,
          "quantise: only the scale of a whole tensor can be given");
    check(!amax || (scaling.group == ScaleGroup::tensor && amax.numel() == 1),
          "quantise: amax is one number, of a whole tensor");
    if (y) check_quantised(y, R, C, scaling.group, "quantise: y (R, C) e4m3 or e5m2, its scales");
    if (transposed)
        check_quantised(transposed, C, R, scaling.group,
                        "quantise: transposed (C, R) e4m3 or e5m2, its scales");
    check(!y || !transposed || y.values.dtype() == transposed.values.dtype(),
          "quantise: y and transposed share their dtype");
}

}  // namespace ultrascale::ops
