// Checks which arguments of these operations go together, on both backends. Private to this folder.
#pragma once

#include "core/ops_fp8_checks.h"
#include "ops_quantised.h"

namespace ultrascale::ops {

// Returns the scale of a tensor whose largest amax in the last n steps is `amax`. An amax that is
// not finite does not count, because the update to which it belongs is skipped.
constexpr float delayed_scale_of(float amax, float largest, int margin) {
    if (amax == 0) return 1;
    const float scale = scale_for(amax, largest, false);
    return margin >= 0 ? scale * float(1 << margin) : scale / float(1 << -margin);
}

// The sizes of fused operations, whose result is (N, columns).
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
