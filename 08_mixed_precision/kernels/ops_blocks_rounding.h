// How one block is rounded, for both backends. Private to this folder.
#pragma once

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/float_formats.h"
#include "ops_blocks.h"

namespace ultrascale::ops {

// E8M0: a code of 8 bits, without sign and mantissa, stands for 2^(code - 127), and 255 for NaN.
constexpr float e8m0(uint32_t code) {
    if (code == 255) return std::bit_cast<float>(0x7fffffffu);
    return std::bit_cast<float>(code == 0 ? 0x00400000u : code << 23);  // 2^-127 is subnormal
}

// The bits of |x|. Their order is that of the magnitudes, with infinity and NaN as the largest.
constexpr uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }
constexpr uint32_t infinite = 0x7f800000u;

// The code of an mx block's scale, from the bits of its largest magnitude, amax. OCP's rule:
// 2^(floor(log2(amax)) - the exponent of F's largest number), which puts amax between 256 and 512
// times the scale, but e4m3 ends at 448. `up`: doubled if amax would be past the end.
template <class F>
constexpr uint32_t e8m0_of(uint32_t amax, bool up) {
    // exercise 08.6 begin: the exponent of amax, less that of the largest number, and one if needed
    if (amax >= infinite) return 255;
    const uint32_t largest = std::bit_cast<uint32_t>(F::largest()), mantissa = 0x7fffffu;
    const bool past = (amax & mantissa) > (largest & mantissa);
    const int code = int(amax >> 23) - (int(largest >> 23) - 127) + (up && past ? 1 : 0);
    return uint32_t(std::max(code, 0));
    // exercise 08.6 end
}

// The scale of a tensor in nvfp4: its largest block then has the scale 448 and the largest number
// 6. A lower limit keeps 1 / scale finite.
constexpr float nvfp4_scale(uint32_t amax) {
    const float largest = std::bit_cast<float>(amax);
    return (largest < 1e-30f ? 1e-30f : largest) / (formats::E2m1::largest() * 448.0f);
}

// x = H x / 4, where H (16, 16) consists of 1 and -1 and has orthogonal rows: four stages of sums
// and differences.
constexpr void hadamard_transform(float (&x)[16], uint32_t signs) {
    for (uint32_t i = 0; i < 16; ++i) x[i] = 0.25f * (signs >> i & 1 ? -x[i] : x[i]);
    for (int stride = 1; stride < 16; stride *= 2)
        for (int i = 0; i < 16; ++i) {
            if (i & stride) continue;
            const float a = x[i], b = x[i + stride];
            x[i] = a + b, x[i + stride] = a - b;
        }
}

// x rounded to F and saturated; with random number `at` if it is rounded stochastically.
template <class F>
constexpr float rounded_to(float x, const BlockRounding& how, uint64_t at) {
    if (!how.random) return F::decode(F::encode(x, Overflow::saturate));
    const uint32_t bits = how.random->block_bits(at / 4)[size_t(at % 4)];
    return F::decode(F::encode_stochastic(x, bits, Overflow::saturate));
}

// A block of x (R, C): `rows` x `cols` elements, in a format whose numbers are F's. Elements beyond
// the matrix's edges are zeros.
template <class F, int rows, int cols>
struct Block {
    static constexpr int size = rows * cols;
    int64_t r0, c0, R, C;
    float x[size] = {};

    // Block number n, counted by rows of blocks.
    template <class Load>
    constexpr Block(int64_t n, int64_t R, int64_t C, const BlockRounding& how, const Load& load)
        : R(R), C(C) {
        const int64_t across = (C + cols - 1) / cols;
        r0 = n / across * rows, c0 = n % across * cols;
        each([&](int i, int64_t at) { x[i] = load(at); });
        if constexpr (size == 16)
            if (how.hadamard) hadamard_transform(x, *how.hadamard);
    }
    static constexpr int64_t count(int64_t R, int64_t C) {
        return (R + rows - 1) / rows * ((C + cols - 1) / cols);
    }
    // Calls visit(i, position in the matrix) for the elements inside of it.
    template <class Visit>
    constexpr void each(const Visit& visit) const {
        for (int i = 0; i < size; ++i) {
            const int64_t r = r0 + i / cols, c = c0 + i % cols;
            if (r < R && c < C) visit(i, r * C + c);
        }
    }
    constexpr uint32_t amax() const {
        uint32_t largest = 0;
        for (const float v : x) largest = std::max(largest, magnitude(v));
        return largest;
    }
    // Calls store(position, number * scale). tensor_amax: that of the whole tensor, for nvfp4.
    template <class Store>
    constexpr void round(const BlockRounding& how, uint32_t tensor_amax, const Store& store) const {
        float scale = 0, factor = 0;  // a number is x * factor
        if constexpr (F::bits == 8) {
            scale = e8m0(e8m0_of<F>(amax(), how.round_up));
            factor = 1 / scale;
        } else {
            const float tensor = nvfp4_scale(tensor_amax);
            scale = formats::E4m3::decode(formats::E4m3::encode(
                std::bit_cast<float>(amax()) / (F::largest() * tensor), Overflow::saturate));
            // If the scale is rounded to 0, which a block far below the others is, so are x.
            factor = scale == 0 ? 0 : 1 / (scale * tensor);
        }
        each([&](int i, int64_t at) {
            store(at, scale * rounded_to<F>(x[i] * factor, how, how.first + uint64_t(at)));
        });
    }
};

// Calls f.template operator()<Block>() for the blocks of this kind.
template <class F>
void with_blocks(const BlockRounding& how, F&& f) {
    using namespace formats;
    using enum BlockShape;
    const auto of_mx = [&]<class Number>(Number) {
        how.shape == row ? f.template operator()<Block<Number, 1, 32>>()
                         : f.template operator()<Block<Number, 32, 1>>();
    };
    if (how.format == BlockFormat::mx_e4m3) return of_mx(E4m3{});
    if (how.format == BlockFormat::mx_e5m2) return of_mx(E5m2{});
    how.shape == row      ? f.template operator()<Block<E2m1, 1, 16>>()
    : how.shape == column ? f.template operator()<Block<E2m1, 16, 1>>()
                          : f.template operator()<Block<E2m1, 16, 16>>();
}

inline void check_blocks(const Tensor& y, const Tensor& x, const BlockRounding& how,
                         const Tensor& tensor_scale) {
    const bool nvfp4 = how.format == BlockFormat::nvfp4;
    check(y.numel() == x.numel() && y.dtype() == DType::bf16, "round_blocks: y (R, C) bf16");
    check(nvfp4 == bool(tensor_scale),
          "round_blocks: nvfp4 has a scale of the tensor, mx has none");
    check(!nvfp4 || (tensor_scale.numel() == 1 && tensor_scale.dtype() == DType::fp32),
          "round_blocks: tensor_scale (1) fp32");
    check(nvfp4 || how.shape != BlockShape::square, "round_blocks: squares are nvfp4's");
    const int64_t along = how.shape == BlockShape::row ? x.cols() : x.rows();
    check(!how.hadamard || (nvfp4 && how.shape != BlockShape::square && along % 16 == 0),
          "round_blocks: the Hadamard transform takes whole blocks of 16, in nvfp4");
}

}  // namespace ultrascale::ops
