// Quantisation to 8 bits, to 12 bits and back, in both orientations, and delayed scales.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "08_mixed_precision/kernels/ops_quantised.h"
#include "core/ops.h"
#include "tests/test_util.h"

namespace ultrascale {
namespace {

using enum ops::ScaleGroup;
using ops::Quantised;
using ops::ScaleGroup;
using ops::Scaling;

constexpr DType floats[] = {DType::fp32, DType::bf16, DType::fp16};
constexpr DType narrow[] = {DType::e4m3, DType::e5m2};
constexpr ScaleGroup groups[] = {tensor, row, tile, block};
using Size2 = std::array<int64_t, 2>;
const std::vector<Size2> shapes = {{1, 1}, {3, 7}, {128, 128}, {130, 257}, {200, 384}, {65, 1040}};

// Normal numbers over several octaves, some rows and columns much larger than others.
Tensor outlying(int64_t R, int64_t C, DType dtype, uint64_t seed) {
    Doubles x = to_double(random_tensor({R, C}, DType::fp32, seed));
    for (int64_t r = 0; r < R; ++r)
        for (int64_t c = 0; c < C; ++c)
            x[size_t(r * C + c)] *= (r % 37 == 5 ? 30 : 0.1) * (c % 53 == 2 ? 20 : 1);
    return tensor_of(x, {R, C}, dtype);
}

int64_t group_of(ScaleGroup group, int64_t r, int64_t c, int64_t R, int64_t C) {
    if (group == tensor) return 0;
    if (group == row) return r;
    if (group == tile) return c / 128 * R + r;
    return r / 128 * ((C + 127) / 128) + c / 128;
}

// Scales and codes as ops_fp8.h describes them.
struct Reference {
    std::vector<float> scales;
    std::vector<uint8_t> codes;
};
Reference reference(const std::vector<float>& x, int64_t R, int64_t C, DType dtype,
                    const Scaling& s) {
    const float largest = dtype == DType::e4m3 ? 448 : 57344;
    Reference result{std::vector<float>(size_t(numel(ops::scales_shape(R, C, s.group)))), {}};
    for (int64_t i = 0; i < R * C; ++i) {
        float& amax = result.scales[size_t(group_of(s.group, i / C, i % C, R, C))];
        amax = std::max(amax, std::abs(x[size_t(i)]));
    }
    for (float& scale : result.scales) {
        scale = std::max(scale, 1e-30f) / largest;
        int exponent = 0;  // scale is in [2^(exponent - 1), 2^exponent)
        if (s.powers_of_two && std::frexp(scale, &exponent) != 0.5f)
            scale = std::ldexp(1.0f, exponent);
    }
    for (int64_t i = 0; i < R * C; ++i) {
        const float scale = result.scales[size_t(group_of(s.group, i / C, i % C, R, C))];
        const float y = x[size_t(i)] * (1.0f / scale);
        result.codes.push_back(dtype == DType::e4m3 ? e4m3(y).bits : e5m2(y).bits);
    }
    return result;
}

std::vector<uint8_t> codes(const Tensor& t) {
    std::vector<uint8_t> all(size_t(t.numel()));
    t.copy_to_host(all.data());
    return all;
}
template <class T>
std::vector<T> turned(const std::vector<T>& x, int64_t R, int64_t C) {
    std::vector<T> to(x.size());
    for (int64_t r = 0; r < R; ++r)
        for (int64_t c = 0; c < C; ++c) to[size_t(c * R + r)] = x[size_t(r * C + c)];
    return to;
}
void expect_equal(const Quantised& got, const Reference& want, const std::string& what) {
    EXPECT_EQ(codes(got.values), want.codes) << what;
    EXPECT_EQ(got.scales.to_host<float>(), want.scales) << what;
}
Quantised quantised(const Tensor& x, DType dtype, const Scaling& s) {
    Quantised y = ops::empty_quantised(x.rows(), x.cols(), dtype, s.group, Memory::activation);
    ops::quantise(y, {}, x, s);
    return y;
}

TEST(OpsFp8, QuantiseInBothOrientations) {
    for (auto [R, C] : shapes)
        for (DType from : floats)
            for (DType to : narrow)
                for (ScaleGroup group : groups)
                    for (bool powers : {false, true}) {
                        if (from != DType::bf16 && (to != DType::e4m3 || powers)) continue;
                        const Scaling s = {group, powers};
                        const Tensor x = outlying(R, C, from, uint64_t(R + C));
                        const std::vector<float> values = x.to_host_float();
                        const Reference want = reference(values, R, C, to, s),
                                        across = reference(turned(values, R, C), C, R, to, s);
                        const auto fresh = [&](int64_t rows, int64_t cols) {
                            return ops::empty_quantised(rows, cols, to, group, Memory::activation);
                        };
                        Quantised y = fresh(R, C), t = fresh(C, R);
                        const std::string what = fmt::format("{} x {} {} {} {}", R, C,
                                                             dtype_name(to), int(group), powers);
                        ops::quantise(y, t, x, s);
                        expect_equal(y, want, what);
                        expect_equal(t, across, what + " transposed");
                        y = fresh(R, C), t = fresh(C, R);
                        ops::quantise(y, {}, x, s);
                        ops::quantise({}, t, x, s);
                        expect_equal(y, want, what + " alone");
                        expect_equal(t, across, what + " transposed alone");
                    }
}

TEST(OpsFp8, AGivenScaleSaturatesAndReportsTheAmax) {
    for (DType from : floats)
        for (auto [R, C] : shapes) {
            const Tensor x = outlying(R, C, from, 5);
            const std::vector<float> values = x.to_host_float();
            float largest = 0;
            for (float v : values) largest = std::max(largest, std::abs(v));
            const Tensor scale = tensor_of({double(largest) / 1000}, {1}, DType::fp32);
            const Tensor amax = Tensor::zeros({1}, DType::fp32, Memory::activation);
            Quantised y = {Tensor::empty({R, C}, DType::e4m3, Memory::activation), scale},
                      t = {Tensor::empty({C, R}, DType::e4m3, Memory::activation), scale};
            ops::quantise(y, t, x, {.given = true}, amax);
            std::vector<uint8_t> want;
            const float factor = 1.0f / scale.to_host<float>()[0];
            for (float v : values) want.push_back(e4m3(v * factor).bits);
            EXPECT_EQ(codes(y.values), want);
            EXPECT_EQ(codes(t.values), turned(want, R, C));
            EXPECT_EQ(amax.to_host<float>()[0], largest);
            ops::fill(amax, 0);
            ops::quantise(y, {}, x, {}, amax);  // the same amax where it makes the scale
            EXPECT_EQ(amax.to_host<float>()[0], largest);
            for (const bool powers : {true, false}) {
                const Tensor again = poisoned({1}, DType::fp32);
                ops::quantise(y, {}, x, {.powers_of_two = powers});
                ops::scale_of_amax(again, amax, DType::e4m3, powers);
                EXPECT_EQ(again.to_host<float>(), y.scales.to_host<float>());
            }
            ops::fill(amax, 2 * largest);
            ops::quantise(y, {}, x, {}, amax);  // it stays where it is larger
            EXPECT_EQ(amax.to_host<float>()[0], 2 * largest);
        }
}

TEST(OpsFp8, WhatIsNotFiniteStaysSoInItsGroupAndZerosAreZeros) {
    Doubles x(256 * 256, 1);
    x[5] = NAN, x[200] = INFINITY;                    // row 0, tiles 0 and 1
    for (size_t i = 0; i < 256; ++i) x[512 + i] = 0;  // row 2
    const Tensor wide = tensor_of(x, {256, 256}, DType::fp32),
                 back = poisoned({256, 256}, DType::fp32);
    ops::dequantise(back, quantised(wide, DType::e4m3, {tile}), tile);
    const Doubles got = to_double(back);
    for (size_t i = 0; i < x.size(); ++i)
        EXPECT_EQ(std::isnan(got[i]), i == 5 || (i >= 128 && i < 256)) << i;
    for (size_t i = 0; i < 256; ++i) EXPECT_EQ(got[512 + i], 0);
    EXPECT_EQ(got[4], 1);
    const Tensor none = Tensor::zeros({3, 40}, DType::bf16, Memory::activation),
                 zeros = poisoned({3, 40}, DType::bf16);
    ops::dequantise(zeros, quantised(none, DType::e5m2, {}), tensor);
    EXPECT_EQ(to_double(zeros), Doubles(120, 0));
    EXPECT_THROW(ops::quantise(quantised(none, DType::e4m3, {}), {}, wide, {}), std::logic_error);
}

TEST(OpsFp8, DequantiseAndTranspose) {
    for (auto [R, C] : shapes)
        for (DType format : narrow)
            for (ScaleGroup group : groups)
                for (bool powers : {false, true}) {
                    const Scaling s = {group, powers};
                    const Tensor x = outlying(R, C, DType::fp32, 9),
                                 back = poisoned({R, C}, DType::fp32);
                    const Quantised y = quantised(x, format, s);
                    ops::dequantise(back, y, group);
                    const std::vector<float> scales = y.scales.to_host<float>(),
                                             numbers = y.values.to_host_float();
                    Doubles want;
                    for (int64_t i = 0; i < R * C; ++i)
                        want.push_back(double(numbers[size_t(i)] *
                                              scales[size_t(group_of(group, i / C, i % C, R, C))]));
                    EXPECT_EQ(to_double(back), want);
                    // half a unit in the last place, or of the smallest number
                    const double worst = format == DType::e4m3 ? 0x1p-4 : 0x1p-3;
                    EXPECT_LT(relative_error(back, to_double(x)), worst);

                    Quantised t = ops::empty_quantised(C, R, format, group, Memory::activation);
                    ops::transpose_quantised(t, y, s);
                    const std::vector<float> values = back.to_host<float>();
                    if (group == row || group == tile) {
                        expect_equal(t, reference(turned(values, R, C), C, R, format, s), "anew");
                    } else {
                        EXPECT_EQ(codes(t.values), turned(codes(y.values), R, C));
                        EXPECT_EQ(t.scales.to_host<float>(),
                                  group == tensor
                                      ? scales
                                      : turned(scales, (R + 127) / 128, (C + 127) / 128));
                    }
                }
}

// The largest of the last n, whatever came before; what is not finite does not count.
TEST(OpsFp8, DelayedScale) {
    const Tensor history = Tensor::zeros({3}, DType::fp32, Memory::optimizer),
                 scale = poisoned({1}, DType::fp32);
    const double amaxes[] = {0, 2, 8, 4, INFINITY, 1, 1, 1};
    const float largest[] = {0, 2, 8, 8, 8, 4, 1, 1};
    for (int64_t step = 0; step < 8; ++step) {
        const Tensor amax = tensor_of({amaxes[step]}, {1}, DType::fp32);
        ops::delayed_scale(scale, history, amax, step, DType::e4m3, 1);
        const float want = largest[step] == 0 ? 1 : largest[step] / 448 * 2;
        EXPECT_EQ(scale.to_host<float>()[0], want) << step;
    }
    ops::delayed_scale(scale, history, tensor_of({7}, {1}, DType::fp32), 8, DType::e5m2);
    EXPECT_EQ(scale.to_host<float>()[0], 7.0f / 57344);
}

TEST(OpsFp8, TwelveBits) {
    for (auto [R, C] : std::vector<Size2>{{1, 128}, {5, 384}, {130, 256}})
        for (DType dtype : floats) {
            const Tensor x = outlying(R, C, dtype, 3);
            const Tensor packed = Tensor::empty({R, 3 * C / 8}, DType::int32, Memory::activation),
                         scales = poisoned({C / 128, R}, DType::fp32),
                         back = poisoned({R, C}, dtype);
            EXPECT_EQ(packed.bytes() * 2, R * C * 3);
            ops::pack_e5m6(packed, scales, x);
            ops::unpack_e5m6(back, packed, scales);
            const std::vector<float> values = x.to_host_float(), s = scales.to_host<float>();
            Doubles want;
            for (int64_t i = 0; i < R * C; ++i) {
                const float scale = s[size_t(group_of(tile, i / C, i % C, R, C))];
                float amax = 0;
                for (int64_t k = i / 128 * 128; k < i / 128 * 128 + 128; ++k)
                    amax = std::max(amax, std::abs(values[size_t(k)]));
                int exponent = 0;
                EXPECT_EQ(std::frexp(scale, &exponent), 0.5f);
                EXPECT_LE(amax / scale, formats::E5m6::largest());
                EXPECT_GT(2 * amax / scale, formats::E5m6::largest());
                want.push_back(
                    double(formats::E5m6::decode(formats::E5m6::encode(values[size_t(i)] / scale)) *
                           scale));
            }
            EXPECT_EQ(to_double(back), to_double(tensor_of(want, {R, C}, dtype)));
            EXPECT_LT(relative_error(back, to_double(x)), 0x1p-7);
        }
    const Tensor odd = random_tensor({2, 64}, DType::fp32, 1);
    EXPECT_THROW(ops::pack_e5m6(Tensor::empty({2, 24}, DType::int32, Memory::activation),
                                poisoned({1, 2}, DType::fp32), odd),
                 std::logic_error);
}

}  // namespace
}  // namespace ultrascale
