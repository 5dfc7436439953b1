// Rounding to mxfp8 and nvfp4, beside what PyTorch's types and NumPy make of the same numbers
// (tests/reference/make_blocks_reference.py); what is not finite; stochastic rounding.
#include "08_mixed_precision/kernels/ops_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "08_mixed_precision/kernels/ops_blocks_rounding.h"
#include "core/ops.h"
#include "tests/test_files.h"
#include "tests/test_util.h"

namespace ultrascale {
namespace {

using enum ops::BlockFormat;
using enum ops::BlockShape;
using nlohmann::json;

constexpr int64_t R = 48, C = 80;
constexpr uint32_t signs = 0xB4D1;

// make_blocks_reference.py's matrix.
std::vector<float> reference_matrix() {
    std::vector<float> x;
    for (int r = 0; r < int(R); ++r)
        for (int c = 0; c < int(C); ++c) {
            const int power = (r / 16 * 5 + c / 16 * 3) % 23 - 17 + (r * 3 + c) % 4;
            const bool zero = r / 16 == 1 && c / 16 == 2;
            x.push_back(zero ? 0 : std::ldexp(float((r * 7919 + c * 10473) % 255 - 127), power));
        }
    x[5 * C + 7] = 4096;
    return x;
}
struct Rounded {
    std::vector<float> y;
    float scale = 1;  // the tensor's, in nvfp4
};
Rounded rounded(const std::vector<float>& x, const ops::BlockRounding& how, int64_t rows = R,
                DType dtype = DType::fp32) {
    const Shape shape{rows, int64_t(x.size()) / rows};
    const Tensor y = Tensor::empty(shape, DType::bf16, Memory::workspace),
                 scale = how.format == nvfp4 ? Tensor::empty({1}, DType::fp32, Memory::workspace)
                                             : Tensor();
    ops::round_blocks(y, tensor_of(Doubles(x.begin(), x.end()), shape, dtype), how, scale);
    return {y.to_host_float(), scale ? scale.to_host<float>()[0] : 1};
}

TEST(OpsBlocks, EqualsPyTorchsTypesAndATableOfNumbers) {
    const std::pair<const char*, ops::BlockRounding> cases[] = {
        {"mx_e4m3 row", {.format = mx_e4m3}},
        {"mx_e4m3 column", {.format = mx_e4m3, .shape = column}},
        {"mx_e4m3 row, OCP", {.format = mx_e4m3, .round_up = false}},
        {"mx_e5m2 row", {.format = mx_e5m2}},
        {"mx_e5m2 column", {.format = mx_e5m2, .shape = column}},
        {"mx_e5m2 row, OCP", {.format = mx_e5m2, .round_up = false}},
        {"nvfp4 row", {.format = nvfp4}},
        {"nvfp4 column", {.format = nvfp4, .shape = column}},
        {"nvfp4 square", {.format = nvfp4, .shape = square}},
        {"nvfp4 column, Hadamard", {.format = nvfp4, .shape = column, .hadamard = signs}}};
    const json references = json::parse(test::slurp(test::reference("blocks.json")));
    ASSERT_EQ(references.size(), std::size(cases));
    const std::vector<float> x = reference_matrix();
    for (const auto& [name, how] : cases) {
        SCOPED_TRACE(name);
        const Rounded got = rounded(x, how);
        std::vector<uint64_t> bits;
        for (const float v : got.y) bits.push_back(v == 0 ? 0 : std::bit_cast<uint32_t>(v) >> 16);
        uint64_t sum = 0;
        for (uint64_t i = 0; i < bits.size(); ++i) sum += bits[i] * (2654435761u * i + 1);
        const json& want = references[name];
        EXPECT_EQ(std::vector<uint64_t>(bits.begin() + 5 * C, bits.begin() + 6 * C),
                  want["row5"].get<std::vector<uint64_t>>());
        EXPECT_EQ(sum, want["sum"].get<uint64_t>());
        if (how.format == nvfp4) {
            EXPECT_EQ(std::bit_cast<uint32_t>(got.scale), want["tensor_scale"].get<uint32_t>());
        }
        EXPECT_EQ(rounded(x, how, R, DType::bf16).y, got.y);  // bf16 can hold this matrix
    }
}

TEST(BlockRounding, EveryScaleOfMx) {
    uint64_t sum = 0;
    for (uint32_t code = 0; code < 256; ++code) {
        const float scale = ops::e8m0(code);
        sum += (code == 255 ? 0x7fffffff : std::bit_cast<uint32_t>(scale)) *
               (2654435761u * uint64_t(code) + 1);
        if (code == 255) continue;
        EXPECT_EQ(scale, std::ldexp(1.0f, int(code) - 127));
        if (code > 246) continue;  // 448 times that is no fp32 number
        // Neither rule changes what fits; one step more, and only OCP's scale stays.
        using F = formats::E4m3;
        const float most = 448 * scale;
        EXPECT_EQ(ops::e8m0_of<F>(ops::magnitude(most), true), code);
        EXPECT_EQ(ops::e8m0_of<F>(ops::magnitude(-most), false), code);
        const uint32_t past = ops::magnitude(std::nextafter(most, INFINITY));
        EXPECT_EQ(ops::e8m0_of<F>(past, true), code + 1);
        EXPECT_EQ(ops::e8m0_of<F>(past, false), code);
    }
    for (const bool up : {true, false}) {
        for (const float bad : {INFINITY, NAN})
            EXPECT_EQ(ops::e8m0_of<formats::E4m3>(ops::magnitude(bad), up), 255);
        for (const float tiny : {0.0f, 1e-45f, 0x1p-120f})
            EXPECT_EQ(ops::e8m0_of<formats::E4m3>(ops::magnitude(tiny), up), 0);
        for (const float large : {1.0f, 28672.0f, 57344.0f, 0x1p127f})  // e5m2 ends at 57,344
            EXPECT_EQ(ops::e8m0_of<formats::E5m2>(ops::magnitude(large), up),
                      uint32_t(std::ilogb(large) + 127 - 15));
        EXPECT_EQ(ops::e8m0_of<formats::E5m2>(ops::magnitude(57345), up), up ? 128 : 127);
    }
    const json formats = json::parse(test::slurp(test::reference("formats.json")));
    EXPECT_EQ(sum, formats["e8m0"]["decoded"].get<uint64_t>());
}

TEST(OpsBlocks, WhatSaturatesAndWhatDoesNot) {
    std::vector<float> x(32, 1.0f);
    x[3] = 500;
    EXPECT_EQ(rounded(x, {.format = mx_e4m3}, 1).y[3], 512);  // 250 * 2, and 250 becomes 256
    EXPECT_EQ(rounded(x, {.format = mx_e4m3, .round_up = false}, 1).y[3], 448);
    x[3] = -7, x[16] = 2688;  // the tensor's scale is 1, the first block's 1.125
    const Rounded four = rounded(x, {.format = nvfp4}, 1);
    EXPECT_EQ(four.scale, 1);
    EXPECT_EQ(four.y[3], -6.75f);
    EXPECT_EQ(four.y[0], 1.125f);
    EXPECT_EQ(four.y[16], 2688);
    EXPECT_EQ(four.y[17], 0);
}

TEST(OpsBlocks, WhatIsNotFiniteSpoilsItsBlockAndZerosAreZeros) {
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
        std::vector<float> x(128, 3.0f);
        x[70] = bad;
        for (const auto format : {mx_e4m3, mx_e5m2}) {
            const std::vector<float> y = rounded(x, {.format = format}, 1).y;
            for (size_t i = 0; i < 128; ++i) EXPECT_EQ(std::isnan(y[i]), i / 32 == 2) << i;
        }
        const Rounded four = rounded(x, {.format = nvfp4}, 1);
        for (const float y : four.y) EXPECT_TRUE(std::isnan(y * four.scale));
    }
    for (const auto format : {mx_e4m3, mx_e5m2, nvfp4})
        EXPECT_EQ(rounded(std::vector<float>(80, 0.0f), {.format = format}, 2).y,
                  std::vector<float>(80, 0.0f));
}

TEST(BlockRounding, TheHadamardTransformKeepsProducts) {
    std::vector<float> x = reference_matrix(), y;
    for (int64_t i = 0; i < R * C; ++i) y.push_back(Random(1, "y").normal(uint64_t(i)));
    for (int64_t c = 0; c < C; ++c)
        for (int64_t r0 = 0; r0 < R; r0 += 16) {
            float a[16], b[16];
            double before = 0, after = 0, size = 0;
            for (int64_t i = 0; i < 16; ++i) {
                a[i] = x[size_t((r0 + i) * C + c)], b[i] = y[size_t((r0 + i) * C + c)];
                before += double(a[i]) * double(b[i]),
                    size += std::abs(double(a[i]) * double(b[i]));
            }
            ops::hadamard_transform(a, signs), ops::hadamard_transform(b, signs);
            for (int i = 0; i < 16; ++i) after += double(a[i]) * double(b[i]);
            EXPECT_NEAR(after, before, 1e-5 * size);
        }
}

// On average stochastic rounding is exact; and what a rank draws depends on the elements' position
// in the run alone.
TEST(OpsBlocks, StochasticRoundingIsUnbiasedAndCountsByPosition) {
    std::vector<float> x;
    for (int64_t i = 0; i < R * C; ++i)
        x.push_back(float(bf16(Random(2, "x").normal(uint64_t(i)))));
    for (const auto format : {mx_e4m3, nvfp4}) {
        constexpr int times = 64;
        std::vector<double> sums(x.size());
        double away = 0, nearest_away = 0, sizes = 0;
        ops::BlockRounding how{.format = format};
        const Rounded nearest = rounded(x, how);
        for (int seed = 0; seed < times; ++seed) {
            how.random = Random(uint64_t(seed), "round");
            const Rounded got = rounded(x, how);
            for (size_t i = 0; i < x.size(); ++i) sums[i] += double(got.y[i] * got.scale) / times;
        }
        for (size_t i = 0; i < x.size(); ++i) {
            away += std::pow(sums[i] - double(x[i]), 2);
            nearest_away += std::pow(double(nearest.y[i] * nearest.scale) - double(x[i]), 2);
            sizes += std::pow(double(x[i]), 2);
        }
        // A mean of 64 has an eighth of the deviation, which is at most twice that of the nearest.
        EXPECT_LT(away, nearest_away / 8) << std::sqrt(away / sizes);
        // The last 16 rows alone, as rows of the same matrix. (The amax of the tensor is theirs.)
        how.random = Random(3, "round"), how.first = 1000 * C;
        x[size_t((R - 1) * C)] = 8;
        const std::vector<float> all = rounded(x, how).y, last(x.begin() + (R - 16) * C, x.end());
        how.first = uint64_t(1000 + R - 16) * C;
        EXPECT_EQ(rounded(last, how, 16).y,
                  std::vector<float>(all.begin() + (R - 16) * C, all.end()));
        how.first += 1;
        EXPECT_NE(rounded(last, how, 16).y,
                  std::vector<float>(all.begin() + (R - 16) * C, all.end()));
    }
}

}  // namespace
}  // namespace ultrascale
