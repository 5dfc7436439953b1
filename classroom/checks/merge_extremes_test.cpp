// Exercise 04.1: log-sum-exps so far from zero that only their difference has an exponential.
#include <gtest/gtest.h>

#include <cmath>

#include "04_context_parallel/kernels/ops_attention_merge.h"

namespace ultrascale {
namespace {

Tensor tensor(const std::vector<float>& values, Shape shape) {
    return Tensor::from_host<float>(values, std::move(shape), Memory::workspace);
}

TEST(AttentionMerge, LogSumExpsFarFromZero) {
    for (const float size : {100.0f, 1000.0f, -1000.0f}) {  // two rows of three
        const Tensor o = tensor({1, 2, 3, 1, 2, 3}, {1, 2, 1, 3}),
                     block = tensor({5, 6, 7, 5, 6, 7}, {1, 2, 1, 3}),
                     lse = tensor({size, size}, {1, 1, 2});
        ops::attention_merge(o, lse, block, tensor({size, size + 1}, {1, 1, 2}), 0);
        const std::vector<float> got = o.to_host<float>(), sums = lse.to_host<float>();
        for (size_t row = 0; row < 2; ++row) {
            const double e = std::exp(double(row)), share = e / (1 + e);
            EXPECT_NEAR(sums[row], size + std::log(1 + e), 1e-6 * std::abs(size)) << size;
            for (size_t d = 0; d < 3; ++d)
                EXPECT_NEAR(got[3 * row + d], double(d) + 1 + 4 * share, 1e-3) << size;
        }
    }
}

}  // namespace
}  // namespace ultrascale
