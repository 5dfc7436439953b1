// A router's choice, token by token (2_route.h), is compared with the operation and with vectors
// from Hugging Face's DeepSeek-V3 router; and it can be forced to the choices of a measurement.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "06_expert_parallel/2_route.h"
#include "06_expert_parallel/expert_options.h"
#include "06_expert_parallel/kernels/ops_experts.h"
#include "06_expert_parallel/lab/margin.h"
#include "core/ops.h"
#include "tests/test_files.h"
#include "tests/test_util.h"

namespace ultrascale {
using namespace ultrascale::expert_parallel;
namespace {

using ops::RouterScore;
using ops::RouterSettings;

const RouterSettings all_settings[] = {
    {.top_k = 2},
    {.top_k = 3, .renormalise = false},
    {.score = RouterScore::sigmoid, .top_k = 4, .groups = 4, .top_groups = 2, .scaling = 2.5},
    {.score = RouterScore::sigmoid, .top_k = 1, .groups = 8, .top_groups = 3},
    {.top_k = 12},
};

TEST(MoeRoute, ChoosesLikeTheOperation) {
    constexpr int64_t N = 40, h = 24;
    for (const RouterSettings& settings : all_settings) {
        const int64_t k = settings.top_k;
        const Tensor logits = random_tensor({N, h}, DType::fp32, 71),
                     bias = random_tensor({h}, DType::fp32, 72),
                     experts = random_integers({N, k}, 0, 0, 73),
                     weights = poisoned({N, k}, DType::fp32),
                     scores = poisoned({N, h}, DType::fp32);
        ops::router_forward(experts, weights, scores, logits, bias, settings);
        const std::vector<float> x = logits.to_host<float>(), b = bias.to_host<float>();
        std::vector<double> want_experts, want_weights, want_scores;
        for (int64_t n = 0; n < N; ++n) {
            const Route route = route_token({&x[size_t(n * h)], size_t(h)}, b, settings);
            want_experts.insert(want_experts.end(), route.experts.begin(), route.experts.end());
            want_weights.insert(want_weights.end(), route.weights.begin(), route.weights.end());
            want_scores.insert(want_scores.end(), route.scores.begin(), route.scores.end());
        }
        EXPECT_EQ(to_double(experts), want_experts);
        EXPECT_LE(relative_error(weights, want_weights), 1e-6);
        EXPECT_LE(relative_error(scores, want_scores), 1e-6);
    }
}

// A router's own choice has the margin 0. A choice that it would make if its scores were slightly
// different has a margin no larger than that difference. An impossible choice has an infinite
// margin.
TEST(MoeRoute, MarginOfAnotherChoice) {
    constexpr int64_t h = 24, N = 400;
    constexpr float shift = 0.01f;
    for (const RouterSettings& settings : all_settings) {
        const auto logits = random_tensor({N, h}, DType::fp32, 76).to_host<float>(),
                   by = random_tensor({N, h}, DType::fp32, 77).to_host<float>(),
                   normal = random_tensor({h}, DType::fp32, 78).to_host<float>();
        std::vector<float> random;
        for (float x : normal) random.push_back(x / 20);
        for (const std::vector<float>& bias : {std::vector<float>(), random}) {
            int others = 0;
            for (size_t n = 0; n < size_t(N); ++n) {
                std::vector<float> row(&logits[n * h], &logits[n * h] + h), moved = row;
                for (size_t e = 0; e < size_t(h); ++e)
                    moved[e] += by[n * h + e] > 0 ? shift : -shift;
                const Route route = route_token(row, bias, settings),
                            other = route_token(moved, bias, settings);
                EXPECT_EQ(margin_of(route.experts, route.scores, bias, settings), 0);
                const double margin = margin_of(other.experts, route.scores, bias, settings);
                EXPECT_LE(margin, 5 * double(shift));
                const bool same = std::set(other.experts.begin(), other.experts.end()) ==
                                  std::set(route.experts.begin(), route.experts.end());
                EXPECT_EQ(margin == 0, same);
                others += !same;
            }
            EXPECT_GT(others, 0) << settings.top_k << " of " << settings.groups << " groups";
        }
    }
    // The experts are in different groups, but only one group is kept.
    const RouterSettings one{.top_k = 2, .groups = 2, .top_groups = 1};
    EXPECT_EQ(margin_of({0, 2}, {0.4, 0.3, 0.2, 0.1}, {}, one), INFINITY);
    EXPECT_NEAR(margin_of({2, 3}, {0.4, 0.3, 0.2, 0.1}, {}, one), 0.4 / 0.7, 1e-12);
    // With a bias, larger numbers are compared.
    EXPECT_NEAR(margin_of({1}, {0.5, 0.4}, {}, {.top_k = 1}), 0.1 / 0.5, 1e-12);
    EXPECT_NEAR(margin_of({1}, {0.5, 0.4}, std::vector<float>{0.5, 0.5}, {.top_k = 1}), 0.1, 1e-7);
}

// Both gradients are compared with differences of the weights.
TEST(MoeRoute, Gradients) {
    for (const RouterSettings& settings : all_settings) {
        const Doubles logits = to_double(random_tensor({24}, DType::fp32, 74)),
                      dweights = to_double(random_tensor({settings.top_k}, DType::fp32, 75));
        const auto floats = [](const Doubles& x) { return std::vector<float>(x.begin(), x.end()); };
        const Route route = route_token(floats(logits), {}, settings);
        // The weights of these experts as a function of the logits, in double.
        const auto value = [&](const Doubles& x) {
            double largest = *std::ranges::max_element(x), sum = 0, chosen = 0, total = 0;
            for (double v : x) sum += std::exp(v - largest);
            const auto score = [&](int e) {
                return settings.score == RouterScore::softmax
                           ? std::exp(x[size_t(e)] - largest) / sum
                           : 1 / (1 + std::exp(-x[size_t(e)]));
            };
            for (int e : route.experts) chosen += score(e);
            for (size_t j = 0; j < route.experts.size(); ++j)
                total += dweights[j] * settings.scaling * score(route.experts[j]) /
                         (settings.renormalise ? chosen : 1);
            return total;
        };
        const Doubles dlogits =
            logit_gradient(route.scores, score_gradient(route, dweights, settings), settings.score);
        EXPECT_LE(relative_error(dlogits, numerical_gradient(value, logits)), 1e-5);
    }
}

TEST(MoeRoute, HuggingFacesDeepSeekRouter) {
    const auto cases = nlohmann::json::parse(test::slurp(test::reference("deepseek_router.json")));
    int tokens = 0, seen = 0;
    for (const auto& c : cases) {
        RouterSettings settings{.score = RouterScore::sigmoid,
                                .groups = c.at("groups"),
                                .top_groups = c.at("top_groups"),
                                .renormalise = c.at("renormalise"),
                                .scaling = c.at("scaling")};
        const auto bias = c.at("bias").get<std::vector<float>>();
        for (size_t n = 0; n < c.at("logits").size(); ++n, ++tokens) {
            const auto logits = c.at("logits")[n].get<std::vector<float>>();
            const auto experts = c.at("experts")[n].get<std::vector<int>>();
            const auto weights = c.at("weights")[n].get<std::vector<double>>();
            settings.top_k = int64_t(experts.size());
            const Route route = route_token(logits, bias, settings);
            // Hugging Face does not sort the chosen experts.
            std::map<int, double> got, want;
            for (size_t j = 0; j < experts.size(); ++j)
                got[route.experts[j]] = route.weights[j], want[experts[j]] = weights[j];
            for (const auto& [e, w] : want) {
                ASSERT_TRUE(got.contains(e)) << n;
                EXPECT_NEAR(got[e], w, 1e-6);
            }
            RouterSettings wrong = settings;
            wrong.masked = 0;
            const std::vector<int> with_0 = route_token(logits, bias, wrong).experts;
            seen +=
                std::set(with_0.begin(), with_0.end()) != std::set(experts.begin(), experts.end());
        }
    }
    EXPECT_GT(tokens, 0);
    EXPECT_GT(seen, 0) << "groups masked with 0 would go unnoticed";
}

TEST(MoeRoute, ForcedChoices) {
    for (const auto& [E, k] : {std::pair<int64_t, int64_t>{8, 2}, {64, 6}, {5, 3}, {4, 4}})
        for (const double skew : {0.0, 0.25, 0.5, 1.0}) {
            std::vector<int64_t> loads(size_t(E), 0);
            const int64_t N = 40 * E;
            int64_t first_is_0 = 0;
            for (int64_t n = 0; n < N; ++n) {
                std::set<int> chosen;
                for (int64_t j = 0; j < k; ++j) {
                    const int e = forced_expert(n, j, E, k, skew);
                    ASSERT_TRUE(e >= 0 && e < E);
                    chosen.insert(e), ++loads[size_t(e)];
                }
                EXPECT_EQ(int64_t(chosen.size()), k) << "an expert was chosen twice";
                first_is_0 += forced_expert(n, 0, E, k, skew) == 0;
            }
            if (skew == 0) {
                for (int64_t load : loads) EXPECT_EQ(load, N * k / E);
            }
            EXPECT_GE(double(first_is_0), std::floor(skew * double(N)));
            for (int64_t e = 1; e < E; ++e)  // the rest is even, up to the last round
                EXPECT_LE(std::abs(loads[size_t(e)] - loads[1]), 2) << e;
        }
}

TEST(MoeCapacity, RoundsUp) {
    const ExpertsConfig config{.count = 8, .router = {.top_k = 2}};
    EXPECT_EQ(capacity_of({.capacity_factor = 1}, config, 64), 16);
    EXPECT_EQ(capacity_of({.capacity_factor = 1.25}, config, 64), 20);
    EXPECT_EQ(capacity_of({.capacity_factor = 1}, config, 65), 17);
    EXPECT_EQ(capacity_of({.capacity_factor = 0.01}, config, 8), 1);
}

}  // namespace
}  // namespace ultrascale
