// Latent attention's operations on columns and heads, against loops over double precision.
#include "core/ops_latent.h"

#include <gtest/gtest.h>

#include "tests/test_util.h"

namespace ultrascale {
namespace {

constexpr DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16};

TEST(OpsLatent, CopiesColumnsToOneOrMoreRows) {
    struct Sizes {
        int64_t rows, n, to, to_first, from, from_first, count;  // to: columns
    };
    for (const DType dtype : dtypes)
        for (const Sizes& s : {Sizes{5, 1, 7, 0, 9, 2, 7}, Sizes{3, 4, 10, 6, 4, 0, 4},
                               Sizes{40, 2, 300, 1, 299, 0, 299}, Sizes{2, 3, 8, 8, 5, 1, 0}}) {
            const Tensor to = random_tensor({s.rows * s.n, s.to}, dtype, 1),
                         from = random_tensor({s.rows, s.from}, dtype, 2);
            Doubles want = to_double(to);
            const Doubles source = to_double(from);
            for (int64_t r = 0; r < s.rows * s.n; ++r)
                for (int64_t i = 0; i < s.count; ++i)
                    want[size_t(r * s.to + s.to_first + i)] =
                        source[size_t(r / s.n * s.from + s.from_first + i)];
            ops::copy_columns(to, s.to_first, from, s.from_first, s.count);
            EXPECT_EQ(to_double(to), want) << dtype_name(dtype) << " " << s.count;
        }
}

TEST(OpsLatent, SumsColumnsOfRows) {
    for (const DType dtype : dtypes)
        for (const auto& [rows, n, count, cols, first] :
             {std::array<int64_t, 5>{4, 1, 3, 5, 2}, {7, 8, 16, 48, 32}, {30, 3, 70, 70, 0}}) {
            const Tensor from = random_tensor({rows * n, cols}, dtype, 3),
                         to = poisoned({rows, count}, dtype);
            const Doubles source = to_double(from);
            Doubles want(size_t(rows * count));
            for (int64_t r = 0; r < rows * n; ++r)
                for (int64_t i = 0; i < count; ++i)
                    want[size_t(r / n * count + i)] += source[size_t(r * cols + first + i)];
            ops::sum_columns(to, from, first);
            EXPECT_LT(relative_error(to, want), tolerance(dtype)) << n << " " << count;
        }
}

TEST(OpsLatent, RotatesTheLastPairsOfEachHead) {
    for (const DType dtype : dtypes)
        for (const auto& [B, T, H, D, R] :
             {std::array<int64_t, 5>{1, 3, 1, 2, 2}, {2, 5, 3, 10, 6}, {2, 40, 2, 48, 16}}) {
            const Tensor x = random_tensor({B, T, H, D}, dtype, 4);
            const Doubles before = to_double(x);
            std::vector<int32_t> position(size_t(B * T));
            for (size_t i = 0; i < position.size(); ++i) position[i] = int32_t(7 * i % 50);
            std::vector<float> frequency(size_t(R / 2));
            for (size_t i = 0; i < frequency.size(); ++i) frequency[i] = 1 / float(1 + 3 * i);
            const Tensor positions =
                             Tensor::from_host<int32_t>(position, {B, T}, Memory::workspace),
                         frequencies =
                             Tensor::from_host<float>(frequency, {R / 2}, Memory::workspace);
            Doubles want = before;
            for (int64_t n = 0; n < B * T * H; ++n)
                for (int64_t i = 0; i < R / 2; ++i) {
                    const double angle =
                        double(position[size_t(n / H)]) * double(frequency[size_t(i)]);
                    double* const pair = &want[size_t((n + 1) * D - R + 2 * i)];
                    const double a = pair[0], b = pair[1];
                    pair[0] = a * std::cos(angle) - b * std::sin(angle);
                    pair[1] = b * std::cos(angle) + a * std::sin(angle);
                }
            ops::rotate_pairs(x, positions, frequencies);
            EXPECT_LT(relative_error(x, want), tolerance(dtype)) << dtype_name(dtype) << " " << R;
            ops::rotate_pairs(x, positions, frequencies, true);
            EXPECT_LT(relative_error(x, before), 2 * tolerance(dtype));
        }
}

TEST(LatentSizes, MistakesAreFound) {
    const Tensor a = random_tensor({4, 6}, DType::fp32, 5),
                 b = random_tensor({2, 6}, DType::fp32, 6);
    EXPECT_THROW(ops::copy_columns(a, 3, b, 0, 4), std::logic_error);  // past the last column
    EXPECT_THROW(ops::copy_columns(a, 0, b, 3, 4), std::logic_error);
    EXPECT_THROW(ops::copy_columns(b, 0, a, 0, 2), std::logic_error);  // fewer rows than `from`
    EXPECT_THROW(ops::sum_columns(b, random_tensor({5, 6}, DType::fp32, 7), 0), std::logic_error);
    EXPECT_THROW(ops::sum_columns(b, a, 1), std::logic_error);
}

}  // namespace
}  // namespace ultrascale
