// 08_mixed_precision's formats: what its tables, its bits and its pictures say of them.
#include <gtest/gtest.h>

#include <limits>

#include "08_mixed_precision/8_stochastic_rounding.h"
#include "08_mixed_precision/lab/format_pictures.h"
#include "core/tensor.h"

namespace ultrascale {
using namespace ultrascale::mixed_precision;
namespace {

TEST(PrecisionFormats, LimitsAreThoseOfTheStandards) {
    using Fp32 = FormatLimits<formats::Fp32>;
    EXPECT_EQ(Fp32::largest, std::numeric_limits<float>::max());
    EXPECT_EQ(Fp32::smallest_normal, std::numeric_limits<float>::min());
    EXPECT_EQ(Fp32::smallest, std::numeric_limits<float>::denorm_min());
    EXPECT_EQ(Fp32::epsilon, std::numeric_limits<float>::epsilon());
    // IEEE 754 binary16; OCP's FP8 (its table 1).
    EXPECT_EQ(FormatLimits<formats::Fp16>::largest, 65504);
    EXPECT_EQ(FormatLimits<formats::Fp16>::smallest, std::ldexp(1.0, -24));
    EXPECT_EQ(FormatLimits<formats::E4m3>::largest, 448);
    EXPECT_EQ(FormatLimits<formats::E4m3>::smallest_normal, std::ldexp(1.0, -6));
    EXPECT_EQ(FormatLimits<formats::E4m3>::smallest, std::ldexp(1.0, -9));
    EXPECT_EQ(FormatLimits<formats::E5m2>::largest, 57344);
    EXPECT_EQ(FormatLimits<formats::E5m2>::smallest_normal, std::ldexp(1.0, -14));
    EXPECT_EQ(FormatLimits<formats::E5m2>::smallest, std::ldexp(1.0, -16));
}

TEST(PrecisionFormats, ANumberTakenApart) {
    using F = formats::E4m3;
    EXPECT_EQ(bits_of_code<F>(F::encode(0.1f)), "0 0011 101");
    EXPECT_EQ(explain_code<F>(F::encode(0.1f)), "+1.625 x 2^-4");
    EXPECT_EQ(explain_code<F>(F::encode(-0.005f)), "-0.375 x 2^-6 (subnormal)");
    EXPECT_EQ(explain_code<F>(F::encode(1e9f)), "not a number");
    EXPECT_EQ(explain_code<F>(F::encode(1e9f, Overflow::saturate)), "+1.75 x 2^8");
    EXPECT_EQ(explain_code<formats::Fp16>(formats::Fp16::encode(-1e9f)), "-infinity");
    EXPECT_EQ(explain_code<formats::Fp16>(0x8000), "-0");
    EXPECT_EQ(bits_of_code<formats::Bf16>(0x3f80), "0 01111111 0000000");
    // The explanation is the value, for all codes of 8 bits.
    for (uint32_t code = 0; code < 256; ++code) {
        const std::string words = explain_code<F>(code);
        const size_t power = words.find(" x 2^");
        if (power == std::string::npos) continue;
        const double value = std::stod(words) * std::exp2(std::stod(words.substr(power + 5)));
        EXPECT_EQ(value, double(F::decode(code))) << words;
    }
}

TEST(PrecisionFormats, PointsBetweenOneAndTwo) {
    EXPECT_EQ(rounded_points<formats::E5m2>(resolution_points).size(), 5u);
    EXPECT_EQ(rounded_points<formats::E4m3>(resolution_points).size(), 9u);
    EXPECT_EQ(rounded_points<formats::Bf16>(resolution_points).size(), 129u);
    EXPECT_EQ(rounded_points<formats::Fp16>(resolution_points).size(), 1025u);
    EXPECT_EQ(rounded_points<formats::Fp32>(resolution_points).size(), 10000u);
}

TEST(PrecisionFormats, StochasticSumsAreExactOnAverage) {
    constexpr int seeds = 200;
    double mean = 0;
    for (int seed = 0; seed < seeds; ++seed) {
        const Random random(uint64_t(seed), "sum");
        mean += rounded_sum<formats::E4m3>(0.01f, 100, &random) / seeds;
    }
    EXPECT_NEAR(mean, 2, 0.1);  // the standard deviation of one sum is about 0.36
    EXPECT_EQ(rounded_sum<formats::E4m3>(0.01f, 100, nullptr), 1);
}

}  // namespace
}  // namespace ultrascale
