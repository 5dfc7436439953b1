// Operations on the magnitudes of numbers, compared with plain loops on the host.
#include "08_mixed_precision/kernels/ops_ranges.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/ops.h"
#include "core/random.h"
#include "tests/test_util.h"

namespace ultrascale {
namespace {

std::vector<float> numbers(int64_t n) {
    const Random random(3, "ranges");
    std::vector<float> all(size_t(n), 0.0f);
    for (int64_t i = 0; i < n; ++i)
        all[size_t(i)] = i % 17 == 0 ? 0 : std::ldexp(random.normal(uint64_t(i)), int(i % 40) - 20);
    return all;
}

TEST(OpsRanges, ColumnScalesAreTheNextPowersOfTwo) {
    constexpr int64_t R = 37, C = 45;
    std::vector<float> x = numbers(R * C);
    for (int64_t r = 0; r < R; ++r) x[size_t(r * C + 1)] = 0;  // a column of zeros
    for (int64_t r = 0; r < R; ++r) x[size_t(r * C + 2)] = r == 5 ? -4.0f : 1.0f;
    const Tensor scales = Tensor::empty({C}, DType::fp32, Memory::workspace),
                 inverses = Tensor::empty({C}, DType::fp32, Memory::workspace);
    ops::column_scales(scales, inverses, Tensor::from_host<float>(x, {R, C}, Memory::workspace));
    const std::vector<float> s = scales.to_host<float>(), inverse = inverses.to_host<float>();
    for (int64_t c = 0; c < C; ++c) {
        float largest = 0;
        for (int64_t r = 0; r < R; ++r) largest = std::max(largest, std::abs(x[size_t(r * C + c)]));
        int exponent = 0;
        EXPECT_EQ(std::frexp(s[size_t(c)], &exponent), 0.5f) << c;
        EXPECT_EQ(s[size_t(c)] * inverse[size_t(c)], 1) << c;
        if (largest == 0) {
            EXPECT_EQ(s[size_t(c)], 1);
        } else {
            EXPECT_GE(s[size_t(c)], largest) << c;
            EXPECT_LT(s[size_t(c)] / 2, largest) << c;
        }
    }
    EXPECT_EQ(s[2], 4);  // a power of two is its own
}

TEST(OpsRanges, ScaledColumnsAndAnAddend) {
    constexpr int64_t R = 9, C = 20;
    const std::vector<float> x = numbers(R * C), factors = numbers(C), more = numbers(R * C);
    const Tensor tx = Tensor::from_host<float>(x, {R, C}, Memory::workspace),
                 tf = Tensor::from_host<float>(factors, {C}, Memory::workspace),
                 y = Tensor::from_host<float>(more, {R, C}, Memory::workspace);
    ops::scale_columns(y, tx, tf, y);
    const std::vector<float> got = y.to_host<float>();
    for (size_t i = 0; i < got.size(); ++i) {
        const double want = double(x[i]) * double(factors[i % C]) + double(more[i]);
        EXPECT_NEAR(double(got[i]), want, 1e-6 * (std::abs(want) + std::abs(double(more[i])))) << i;
    }
    const Tensor narrow = Tensor::empty({R, C}, DType::bf16, Memory::workspace);
    ops::scale_columns(narrow, tx, tf);
    const std::vector<bf16> rounded = narrow.to_host<bf16>();
    for (size_t i = 0; i < rounded.size(); ++i)
        EXPECT_EQ(float(rounded[i]), float(bf16(x[i] * factors[i % C]))) << i;
}

TEST(OpsRanges, SaturatedNumbersAreCounted) {
    const std::vector<float> x{448, -448, 447, 1000, -1e9f, 0, 1, 416};
    for (const DType dtype : {DType::e4m3, DType::e5m2}) {
        const Tensor y = Tensor::empty({8}, dtype, Memory::workspace),
                     count = Tensor::zeros({1}, DType::int32, Memory::workspace);
        ops::copy(y, Tensor::from_host<float>(x, {8}, Memory::workspace));
        ops::count_saturated(count, y);
        ops::count_saturated(count, y);  // adds
        // 447 is rounded to 448; only -1e9 is past e5m2's 57,344.
        EXPECT_EQ(count.to_host<int32_t>()[0], dtype == DType::e4m3 ? 10 : 2);
    }
}

TEST(OpsRanges, BinadesAreCounted) {
    const std::vector<float> x{0, -0.0f, 1, -1.99f, 2, 0.5f, INFINITY, NAN, 1e-45f, 3};
    const Tensor counts = Tensor::zeros({ops::binades}, DType::int32, Memory::workspace);
    ops::count_binades(counts, Tensor::from_host<float>(x, {10}, Memory::workspace));
    std::vector<int32_t> want(size_t(ops::binades), 0);
    want[0] = 2, want[1 + 127] = 2, want[1 + 128] = 2, want[1 + 126] = 1;
    want[1 + 255] = 2, want[1] = 1;
    EXPECT_EQ(counts.to_host<int32_t>(), want);
}

}  // namespace
}  // namespace ultrascale
