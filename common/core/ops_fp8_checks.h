// What both backends' operations in 8 bits share: the scale of a group, and which arguments go
// together. Private to common/cpu and common/cuda.
#pragma once

#include <algorithm>
#include <bit>

#include "ops_fp8.h"

namespace ultrascale::ops {

// The scale of a group with this amax. The smallest one keeps 1 / scale finite; it also makes zeros
// of a group of zeros. Rounded up to a power of two: the next exponent unless the mantissa is zero.
constexpr float scale_for(float amax, float largest, bool power_of_two) {
    const float scale = (amax > 1e-30f ? amax : 1e-30f) / largest;
    if (!power_of_two) return scale;
    return std::bit_cast<float>((std::bit_cast<uint32_t>(scale) + 0x007fffffu) & 0x7f800000u);
}

// The scale of a tensor whose last n amax are these. Those that are not finite do not count: the
// update that they belong to is skipped.
constexpr float delayed_scale_of(float amax, float largest, int margin) {
    if (amax == 0) return 1;
    const float scale = scale_for(amax, largest, false);
    return margin >= 0 ? scale * float(1 << margin) : scale / float(1 << -margin);
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

// Where the scale of the run of row r's elements 128 j .. 128 j + 127 is.
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

// Fused operations, whose result is (N, columns).
struct FusedSizes {
    int64_t N, columns;
};
inline void check_fused(const Quantised& y, const FusedSizes& n, const Scaling& scaling,
                        const Tensor& amax) {
    check(scaling.group != ScaleGroup::block, "blocks of 128 x 128 are for weights");
    check_quantise(y, {}, n.N, n.columns, scaling, amax);
}
inline FusedSizes norm_sizes(const Quantised& y, const Tensor& rstd, const Tensor& x,
                             const Tensor& weight, const Scaling& scaling, const Tensor& amax) {
    const FusedSizes n = {x.rows(), x.cols()};
    check_fused(y, n, scaling, amax);
    check(rstd.numel() == n.N && weight.numel() == n.columns,
          "rmsnorm_forward_quantised: rstd (N), weight (h)");
    return n;
}
inline FusedSizes swiglu_sizes(const Quantised& y, const Tensor& gate_up, const Scaling& scaling,
                               const Tensor& amax) {
    const FusedSizes n = {y.values.rows(), y.values.cols()};
    check_fused(y, n, scaling, amax);
    check(gate_up.numel() == 2 * n.N * n.columns && gate_up.cols() == 2 * n.columns,
          "swiglu_forward_quantised: gate_up is (N, 2F)");
    return n;
}

// ---- e5m6: number i of eight in bits 12 i .. 12 i + 11 of three words, the first word lowest ----
inline void check_e5m6(const Tensor& packed, const Tensor& scales, int64_t R, int64_t C) {
    check(C % scale_block == 0, "e5m6: rows are multiples of 128");
    check(packed.dtype() == DType::int32 && packed.numel() * 8 == R * C * 3,
          "e5m6: packed is (R, 3 C / 8) int32");
    check(scales.dtype() == DType::fp32 && scales.numel() * scale_block == R * C,
          "e5m6: scales are (C / 128, R)");
}
constexpr void pack_eight(int32_t (&words)[3], const float (&x)[8], float factor) {
    uint32_t all[3] = {};
    for (int i = 0; i < 8; ++i) {
        const uint32_t code = formats::E5m6::encode(x[i] * factor, Overflow::saturate);
        const int word = 12 * i / 32, shift = 12 * i % 32;
        all[word] |= code << shift;
        if (shift > 20) all[word + 1] |= code >> (32 - shift);
    }
    for (int w = 0; w < 3; ++w) words[w] = int32_t(all[w]);
}
constexpr void unpack_eight(float (&x)[8], const int32_t (&words)[3], float scale) {
    for (int i = 0; i < 8; ++i) {
        const int word = 12 * i / 32, shift = 12 * i % 32;
        uint32_t code = uint32_t(words[word]) >> shift;
        if (shift > 20) code |= uint32_t(words[word + 1]) << (32 - shift);
        x[i] = formats::E5m6::decode(code & 0xfffu) * scale;
    }
}

struct ProductSizes {
    int64_t M, N, K;
};
inline ProductSizes fp8_sizes(const Tensor& d, const Quantised& a, const Quantised& b,
                              const Fp8Product& product, const Tensor& addend) {
    using enum ScaleGroup;
    const int64_t M = a.values.rows(), N = b.values.rows(), K = a.values.cols();
    check_quantised(a, M, K, product.a, "matmul_fp8: a (M, K) e4m3 or e5m2, its scales");
    check_quantised(b, N, K, product.b, "matmul_fp8: b (N, K) e4m3 or e5m2, its scales");
    check(a.values.dtype() == DType::e4m3 || b.values.dtype() == DType::e4m3,
          "matmul_fp8: a or b is e4m3");
    check(product.a != tile || b.values.dtype() == DType::e4m3, "matmul_fp8: with tiles b is e4m3");
    check(d.numel() == M * N && (M == 0 || d.cols() == N), "matmul_fp8: d is (M, N)");
    check(!addend || (addend.numel() == d.numel() && addend.dtype() == d.dtype()),
          "matmul_fp8: addend has d's shape and dtype");
    check(
        (product.a == product.b && product.a != block) || (product.a == tile && product.b == block),
        "matmul_fp8: scales of tensors, of rows, of tiles and blocks, or of tiles");
    return {M, N, K};
}

}  // namespace ultrascale::ops
