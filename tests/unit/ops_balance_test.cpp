// The operations around a router of a mixture of experts, against loops in double.
#include "06_expert_parallel/kernels/ops_balance.h"

#include <gtest/gtest.h>

#include "06_expert_parallel/kernels/ops_experts.h"
#include "core/ops.h"
#include "tests/test_util.h"

namespace ultrascale {
namespace {

// Returns p of token n: its scores, divided by their sum if `normalise`.
Doubles shares(const Doubles& scores, int64_t E, bool normalise) {
    Doubles p = scores;
    for (size_t at = 0; at < p.size(); at += size_t(E)) {
        double sum = 0;
        for (int64_t e = 0; e < E; ++e) sum += scores[at + size_t(e)];
        for (int64_t e = 0; normalise && e < E; ++e) p[at + size_t(e)] /= sum;
    }
    return p;
}
Tensor positive(Shape shape, uint64_t seed) {
    Doubles values = to_double(random_tensor(shape, DType::fp32, seed));
    for (double& x : values) x = std::abs(x) + 0.01;
    return tensor_of(values, shape, DType::fp32);
}

TEST(OpsBalance, StatisticsAndTheirGradient) {
    for (const auto& [S, T, E, k] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 1, 1, 1},
                                     {1, 64, 8, 2},
                                     {3, 7, 5, 2},
                                     {2, 33, 70, 6}})
        for (const bool normalise : {false, true}) {
            SCOPED_TRACE(fmt::format("S {} T {} E {} k {} {}", S, T, E, k, normalise));
            const int64_t N = S * T;
            const Tensor scores = positive({N, E}, 81),
                         experts = random_integers({N, k}, -1, int32_t(E - 1), 82),
                         counts = poisoned({S, E}, DType::fp32),
                         sums = poisoned({S, E}, DType::fp32);
            ops::balance_statistics(counts, sums, experts, scores, normalise);
            const Doubles p = shares(to_double(scores), E, normalise), chosen = to_double(experts);
            Doubles want_counts(size_t(S * E)), want_sums(size_t(S * E));
            for (int64_t n = 0; n < N; ++n) {
                for (int64_t e = 0; e < E; ++e)
                    want_sums[size_t(n / T * E + e)] += p[size_t(n * E + e)];
                for (int64_t j = 0; j < k; ++j)
                    if (const double e = chosen[size_t(n * k + j)]; e >= 0)
                        ++want_counts[size_t(n / T * E) + size_t(e)];
            }
            EXPECT_EQ(to_double(counts), want_counts);
            EXPECT_LE(relative_error(sums, want_sums), 1e-6);

            const Tensor factors = random_tensor({S, E}, DType::fp32, 83),
                         gradient = poisoned({N, E}, DType::fp32);
            ops::balance_gradient(gradient, factors, scores, normalise);
            const Doubles f = to_double(factors);
            const auto value = [&](const Doubles& x) {
                const Doubles of = shares(x, E, normalise);
                double sum = 0;
                for (int64_t n = 0; n < N; ++n)
                    for (int64_t e = 0; e < E; ++e)
                        sum += f[size_t(n / T * E + e)] * of[size_t(n * E + e)];
                return sum;
            };
            if (N * E > 600) continue;  // differences take too long
            EXPECT_LE(relative_error(gradient, numerical_gradient(value, to_double(scores))), 2e-5);
        }
}

TEST(OpsBalance, ZLoss) {
    const Tensor logits = random_tensor({11, 6}, DType::fp32, 84),
                 gradient = random_tensor({11, 6}, DType::fp32, 85),
                 total = tensor_of({2}, {1}, DType::fp64);
    const Doubles before = to_double(gradient);
    const auto value = [](const Doubles& x) {
        double all = 0;
        for (size_t at = 0; at < x.size(); at += 6) {
            double sum = 0;
            for (size_t e = 0; e < 6; ++e) sum += std::exp(x[at + e]);
            all += std::log(sum) * std::log(sum);
        }
        return all;
    };
    ops::z_loss(total, logits);
    EXPECT_NEAR(to_double(total)[0], 2 + value(to_double(logits)), 1e-4);
    ops::z_loss_backward(gradient, logits, 0.5f);
    Doubles want = numerical_gradient(value, to_double(logits));
    for (size_t i = 0; i < want.size(); ++i) want[i] = 0.5 * want[i] + before[i];
    EXPECT_LE(relative_error(gradient, want), 1e-5);
}

// An expert keeps the rows for which it has room, by position or by weight.
TEST(OpsBalance, CapacitySlots) {
    const Tensor experts = integers({1, 0, 1, 0, 1, 2, 1, 0}, {4, 2}),
                 weights = tensor_of({.1, .9, .4, .6, .4, .6, .3, .7}, {4, 2}, DType::fp32),
                 counts = integers({9, 9, 9}, {3}), sorted = integers(std::vector<int32_t>(8), {8}),
                 at = integers(std::vector<int32_t>(8), {4, 2}),
                 row_map = integers(std::vector<int32_t>(8, 9), {4, 2});
    ops::sort_by_expert(counts, sorted, at, experts);
    ops::capacity_slots(row_map, experts, sorted, at, counts, 2);
    EXPECT_EQ(to_double(row_map), (Doubles{2, 0, 3, 1, -1, 4, -1, -1}));
    ops::capacity_slots(row_map, experts, sorted, at, counts, 2, weights);
    EXPECT_EQ(to_double(row_map), (Doubles{-1, 0, 2, -1, 3, 4, -1, 1}));
}

// A larger case, compared with the rule itself.
TEST(OpsBalance, CapacitySlotsOfManyRows) {
    constexpr int64_t N = 300, k = 3, E = 7, C = 100, R = N * k;
    const Tensor experts = random_integers({N, k}, -1, E - 1, 86), weights = positive({N, k}, 87),
                 counts = random_integers({E}, 0, 0, 1), sorted = random_integers({R}, 0, 0, 1),
                 at = random_integers({N, k}, 0, 0, 1), row_map = random_integers({N, k}, 5, 5, 1);
    ops::sort_by_expert(counts, sorted, at, experts);
    for (const bool by_score : {false, true}) {
        ops::capacity_slots(row_map, experts, sorted, at, counts, C, by_score ? weights : Tensor());
        const Doubles e = to_double(experts), w = to_double(weights), got = to_double(row_map);
        for (size_t i = 0; i < size_t(R); ++i) {
            double before = 0;
            for (size_t j = 0; j < size_t(R); ++j)
                before +=
                    e[j] == e[i] && (by_score ? w[j] > w[i] || (w[j] == w[i] && j < i) : j < i);
            ASSERT_EQ(got[i], e[i] < 0 || before >= C ? -1 : e[i] * C + before) << i;
        }
    }
}

}  // namespace
}  // namespace ultrascale
