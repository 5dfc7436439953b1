// Narrow formats: every code and every halfway case against NumPy and ml_dtypes, saturation,
// stochastic rounding; on a GPU the device's own conversions.
#include "core/float_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/ops.h"
#include "tests/test_files.h"

namespace ultrascale {
namespace {

using nlohmann::json;

struct Checksum {
    uint64_t sum = 0, i = 0;
    void add(uint64_t value) { sum += value * (2654435761u * i++ + 1); }
};

// fp32's bits, and all NaN as one.
uint32_t bits_of(float x) { return std::isnan(x) ? 0x7fffffffu : std::bit_cast<uint32_t>(x); }

// make_formats_reference.py's list, made with the format itself: each number from 0 to the largest,
// the point halfway to the next one, the fp32 numbers beside it, with both signs.
template <class Format>
std::vector<float> halfway_cases() {
    std::vector<float> all;
    for (uint32_t code = 0; code <= Format::largest_code; ++code) {
        const double low = double(Format::decode(code));
        const double next = code < Format::largest_code
                                ? double(Format::decode(code + 1))
                                : 2 * low - double(Format::decode(code - 1));
        const float middle = float((low + next) / 2);
        for (float x :
             {float(low), std::nextafter(middle, 0.0f), middle, std::nextafter(middle, INFINITY)})
            all.push_back(x), all.push_back(-x);
    }
    return all;
}

// The code of each of them, so that a failure names the number; the checksums below are ml_dtypes'.
template <class Format>
void expect_nearest(const char* name) {
    const std::vector<float> cases = halfway_cases<Format>();
    for (size_t i = 0; i < cases.size(); ++i) {
        const auto below = uint32_t(i / 8);  // a code's number, and three around the next middle
        const uint32_t nearest[] = {below, below, below + below % 2, below + 1};
        const char* const where[] = {"the number of code", "below the middle of codes",
                                     "the middle of codes", "above the middle of codes"};
        const uint32_t code = std::min(nearest[i % 8 / 2], Format::nan),
                       want = i % 2 == 0 || std::isnan(Format::decode(code)) ? code
                                                                             : code | Format::sign;
        ASSERT_EQ(Format::encode(cases[i]), want)
            << fmt::format("{} of {} ({} {}{})", name, cases[i], where[i % 8 / 2], below,
                           i % 8 < 2 ? "" : fmt::format(" and {}", below + 1));
    }
}

TEST(FloatFormats, EncodesTheNearestAndOfTwoTheEven) {
    expect_nearest<formats::E2m1>("e2m1");
    expect_nearest<formats::E4m3>("e4m3");
    expect_nearest<formats::E5m2>("e5m2");
    expect_nearest<formats::E5m6>("e5m6");
    expect_nearest<formats::Fp16>("fp16");
    expect_nearest<formats::Bf16>("bf16");
}

template <class Format>
void expect_equal(const char* name) {
    static const json references = json::parse(test::slurp(test::reference("formats.json")));
    const json& want = references[name];
    Checksum decoded, encoded;
    for (uint32_t code = 0; code < uint32_t(1) << Format::bits; ++code)
        decoded.add(bits_of(Format::decode(code)));
    EXPECT_EQ(decoded.sum, want["decoded"].get<uint64_t>()) << name;

    const std::vector<float> cases = halfway_cases<Format>();
    EXPECT_EQ(cases.size(), want["cases"].get<size_t>()) << name;
    for (float x : cases) encoded.add(Format::encode(x));
    EXPECT_EQ(encoded.sum, want["encoded"].get<uint64_t>()) << name;

    for (size_t i = 0; i < references["shown"].size(); ++i) {
        const float x = references["shown"][i].get<float>();
        EXPECT_EQ(Format::encode(x), want["codes"][i].get<uint32_t>()) << name << " " << x;
    }
}

TEST(FloatFormats, EveryCodeAndHalfwayCaseEqualsMlDtypes) {
    expect_equal<formats::Bf16>("bf16");
    expect_equal<formats::Fp16>("fp16");
    expect_equal<formats::E5m6>("e5m6");
    expect_equal<formats::E5m2>("e5m2");
    expect_equal<formats::E4m3>("e4m3");
    expect_equal<formats::E2m1>("e2m1");
}

// tensor.h's types are the formats; NaN's codes may differ.
TEST(FloatFormats, AreTheTensorsTypes) {
    for (float x : halfway_cases<formats::Bf16>())
        ASSERT_EQ(bits_of(float(bf16(x))),
                  bits_of(formats::Bf16::decode(formats::Bf16::encode(x))));
    for (float x : halfway_cases<formats::Fp16>())
        ASSERT_EQ(bits_of(float(fp16(x))),
                  bits_of(formats::Fp16::decode(formats::Fp16::encode(x))));
    for (uint32_t u = 0; u < 0xffff0000u; u += 65521) {  // all of fp32, thinned
        const float x = std::bit_cast<float>(u);
        ASSERT_EQ(bits_of(formats::Fp32::decode(formats::Fp32::encode(x))), bits_of(x));
        ASSERT_EQ(bits_of(float(bf16(x))),
                  bits_of(formats::Bf16::decode(formats::Bf16::encode(x))));
        ASSERT_EQ(bits_of(float(fp16(x))),
                  bits_of(formats::Fp16::decode(formats::Fp16::encode(x))));
    }
}

TEST(FloatFormats, Limits) {
    using namespace formats;
    EXPECT_EQ(Fp32::largest(), std::numeric_limits<float>::max());
    EXPECT_EQ(Fp32::smallest_normal(), std::numeric_limits<float>::min());
    EXPECT_EQ(Fp32::smallest(), std::numeric_limits<float>::denorm_min());
    EXPECT_EQ(Fp32::epsilon(), std::numeric_limits<float>::epsilon());
    EXPECT_EQ(Tf32::bits, 19);
    EXPECT_EQ(Tf32::epsilon(), 0x1p-10f);
    EXPECT_EQ(Bf16::largest(), 0x1.FEp127f);
    EXPECT_EQ(Bf16::smallest(), 0x1p-133f);
    EXPECT_EQ(Fp16::largest(), 65504);
    EXPECT_EQ(Fp16::smallest_normal(), 0x1p-14f);
    EXPECT_EQ(Fp16::smallest(), 0x1p-24f);
    EXPECT_EQ(E5m6::largest(), 65024);
    EXPECT_EQ(E5m6::bits, 12);
    EXPECT_EQ(E5m2::largest(), 57344);
    EXPECT_EQ(E5m2::smallest(), 0x1p-16f);
    EXPECT_EQ(E5m2::epsilon(), 0.25f);
    EXPECT_EQ(E4m3::largest(), 448);
    EXPECT_EQ(E4m3::smallest_normal(), 0x1p-6f);
    EXPECT_EQ(E4m3::smallest(), 0x1p-9f);
    EXPECT_EQ(E4m3::epsilon(), 0.125f);
    EXPECT_EQ(E2m1::largest(), 6);
    EXPECT_EQ(E2m1::smallest_normal(), 1);
    EXPECT_EQ(E2m1::smallest(), 0.5f);
    EXPECT_EQ(E2m1::bits, 4);
}

template <class Format>
void expect_overflow(float first_too_large) {
    const float below = std::nextafter(first_too_large, 0.0f), huge = INFINITY;
    for (float sign : {1.0f, -1.0f}) {
        const uint32_t top = sign < 0 ? Format::sign : 0;
        EXPECT_EQ(Format::encode(sign * below), top | Format::largest_code);
        for (float x : {first_too_large, 1e38f, huge}) {
            const float infinite = Format::decode(Format::encode(sign * x));
            EXPECT_TRUE(Format::largest_code + 1 == Format::infinity ? infinite == sign * huge
                                                                     : std::isnan(infinite));
            EXPECT_EQ(Format::encode(sign * x, Overflow::saturate), top | Format::largest_code);
        }
        for (Overflow overflow : {Overflow::saturate, Overflow::infinite}) {
            EXPECT_EQ(Format::encode(sign * NAN, overflow), Format::nan);
            EXPECT_EQ(Format::encode_stochastic(sign * NAN, 12345, overflow), Format::nan);
            EXPECT_EQ(Format::encode(sign * 1e-40f, overflow), top);
            EXPECT_EQ(Format::encode(sign * 0.0f, overflow), top);
        }
        EXPECT_EQ(Format::encode_stochastic(sign * huge, 0, Overflow::saturate),
                  top | Format::largest_code);
    }
}

TEST(FloatFormats, OverflowSaturatesOrNot) {
    expect_overflow<formats::Fp16>(65520);
    expect_overflow<formats::E5m6>(65280);
    expect_overflow<formats::E5m2>(61440);  // halfway: the even code is infinity's
    expect_overflow<formats::E4m3>(std::nextafter(464.0f, 500.0f));  // halfway: 448 is even
    for (const float huge : {5.0001f, 7.0f, 1e38f, INFINITY, NAN})   // e2m1 has only numbers
        for (const Overflow overflow : {Overflow::saturate, Overflow::infinite}) {
            EXPECT_EQ(formats::E2m1::decode(formats::E2m1::encode(huge, overflow)), 6);
            EXPECT_EQ(formats::E2m1::decode(formats::E2m1::encode(-huge, overflow)), -6);
        }
    EXPECT_EQ(float(e4m3(1e9f)), 448);
    EXPECT_EQ(float(e5m2(-INFINITY)), -57344);
    EXPECT_TRUE(std::isnan(float(e4m3(NAN))));
}

// Over all values of the bits that are dropped, x is met exactly: the mean of the results is x.
template <class Format>
void expect_unbiased(float x) {
    constexpr uint32_t n = 1 << 16;
    double sum = 0;
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t random = i * 65536u | i;  // as many low bits as a shift uses are all met
        const float rounded = Format::decode(Format::encode_stochastic(x, random));
        EXPECT_LE(std::abs(rounded - x),
                  std::max(Format::epsilon() * std::abs(x), Format::smallest()));
        sum += double(rounded);
    }
    EXPECT_NEAR(sum / n, double(x),
                double(std::max(Format::epsilon() * std::abs(x), Format::smallest())) / 250);
    const float exact = Format::decode(Format::encode(x));
    for (uint32_t random : {0u, 0xffffffffu, 0x80000000u})
        EXPECT_EQ(Format::decode(Format::encode_stochastic(exact, random)), exact);
}

TEST(FloatFormats, StochasticRoundingIsUnbiased) {
    for (float x : {0.1f, -0.3f, 1.0009765625f, 3.14159f, 100.0f, 1e-3f, -2e-6f, 1e-9f}) {
        expect_unbiased<formats::Bf16>(x);
        expect_unbiased<formats::Fp16>(x);
        expect_unbiased<formats::E5m2>(x);
        expect_unbiased<formats::E4m3>(x);
        if (std::abs(x) < 6) expect_unbiased<formats::E2m1>(x);
    }
}

// Each bit of the element's random number counts: rounding up and down of a sum of many small
// updates, none of which bf16 could hold, keeps their mean.
TEST(FloatFormats, SmallUpdatesAreNotLost) {
    const Random random(7, "stochastic");
    float nearest = 1, stochastic = 1;
    for (uint64_t i = 0; i < 20000; ++i) {
        nearest = float(bf16(nearest + 1e-4f));
        stochastic = formats::Bf16::decode(
            formats::Bf16::encode_stochastic(stochastic + 1e-4f, random.bits(i)));
    }
    EXPECT_EQ(nearest, 1);
    EXPECT_NEAR(stochastic, 3, 0.2);
}

// The backend's conversions, which on a GPU are the device's own, bit for bit; NaN is NaN.
template <class T, class Format>
void expect_device(DType dtype, Overflow overflow) {
    std::vector<float> cases = halfway_cases<Format>();
    for (float x : {NAN, -NAN, INFINITY, -INFINITY, 1e38f, -1e38f, 1e-40f, -0.0f})
        cases.push_back(x);
    const Shape shape = {int64_t(cases.size())};
    const Tensor wide = Tensor::from_host<float>(cases, shape, Memory::workspace),
                 narrow = Tensor::empty(shape, dtype, Memory::workspace),
                 back = Tensor::empty(shape, DType::fp32, Memory::workspace);
    ops::copy(narrow, wide);
    ops::copy(back, narrow);
    const std::vector<T> codes = narrow.to_host<T>();
    const std::vector<float> values = back.to_host<float>();
    for (size_t i = 0; i < cases.size(); ++i) {
        const uint32_t want = Format::encode(cases[i], overflow);
        ASSERT_EQ(bits_of(values[i]), bits_of(Format::decode(want))) << cases[i];
        ASSERT_EQ(bits_of(float(codes[i])), bits_of(Format::decode(want))) << cases[i];
    }
}

TEST(OpsFloatFormats, TheDevicesConversionsAreOurs) {
    expect_device<bf16, formats::Bf16>(DType::bf16, Overflow::infinite);
    expect_device<fp16, formats::Fp16>(DType::fp16, Overflow::infinite);
    expect_device<e4m3, formats::E4m3>(DType::e4m3, Overflow::saturate);
    expect_device<e5m2, formats::E5m2>(DType::e5m2, Overflow::saturate);
}

}  // namespace
}  // namespace ultrascale
