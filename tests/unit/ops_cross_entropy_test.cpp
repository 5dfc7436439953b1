// The loss and its gradient against double precision, and against central differences.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/device.h"
#include "core/ops.h"
#include "tests/test_util.h"

namespace ultrascale {
namespace {

double log_sum_exp(const double* x, int64_t V) {
    const double highest = *std::max_element(x, x + V);
    double sum = 0;
    for (int64_t i = 0; i < V; ++i) sum += std::exp(x[i] - highest);
    return std::log(sum) + highest;
}

TEST(OpsCrossEntropy, LossesAndGradientInPlace) {
    for (DType dtype : {DType::fp32, DType::bf16, DType::fp16})
        for (double size : {1.0, 100.0}) {
            // more rows than a GPU's blocks process at once
            const int64_t rows = device_is_gpu() && size == 1 ? 150 : 2;
            for (auto [N, V] : std::vector<std::array<int64_t, 2>>{{1, 1},
                                                                   {5, 3},
                                                                   {601, 257},
                                                                   {9, 10007},
                                                                   {5, 16},
                                                                   {rows, 65528},
                                                                   {3, 80001},
                                                                   {6, 128256}}) {
                Tensor logits = random_tensor({N, V}, dtype, 21),
                       targets = random_integers({N}, 0, int32_t(V - 1), 22);
                ops::scale(logits, float(size));
                std::vector<int32_t> target_of = targets.to_host<int32_t>();
                for (size_t n = 1; n < target_of.size(); n += 5) target_of[n] = ops::ignored_target;
                targets.copy_from_host(target_of.data());
                Tensor losses = poisoned({N}, DType::fp32);
                const Doubles x = to_double(logits);
                Doubles want(size_t(N), 0), gradient(x.size(), 0);
                for (int64_t n = 0; n < N; ++n) {
                    const int32_t target = target_of[size_t(n)];
                    if (target == ops::ignored_target) continue;
                    const double lse = log_sum_exp(&x[n * V], V);
                    want[n] = lse - x[n * V + target];
                    for (int64_t i = 0; i < V; ++i)
                        gradient[n * V + i] = 0.25 * (std::exp(x[n * V + i] - lse) - (i == target));
                }
                ops::cross_entropy(losses, logits, targets, 0);
                EXPECT_EQ(to_double(logits), x);  // without dscale nothing is written
                EXPECT_LT(relative_error(losses, want), 2e-6);
                ops::cross_entropy(losses, logits, targets, 0.25f);
                EXPECT_LT(relative_error(losses, want), 2e-6);
                EXPECT_LT(relative_error(logits, gradient), dtype == DType::fp32 ? 1e-5 : 5e-3);
            }
        }
}

TEST(OpsCrossEntropy, CentralDifferencesAndBadTargets) {
    Tensor x = random_tensor({2, 7}, DType::fp32, 23), targets = integers({3, 6}, {2}),
           losses = poisoned({2}, DType::fp32);
    const Doubles at = to_double(x);
    ops::cross_entropy(losses, x, targets, 0.5f);
    auto loss = [&](const Doubles& v) {
        return 0.5 * (log_sum_exp(&v[0], 7) - v[3] + log_sum_exp(&v[7], 7) - v[7 + 6]);
    };
    EXPECT_LT(relative_error(x, numerical_gradient(loss, at)), 1e-5);
#ifndef ULTRASCALE_SIMT  // on GPUs, too, the host does not see the targets
    if (!device_is_gpu()) {
        EXPECT_THROW(ops::cross_entropy(losses, x, integers({3, 7}, {2}), 0), std::logic_error);
    }
#endif
}

}  // namespace
}  // namespace ultrascale
