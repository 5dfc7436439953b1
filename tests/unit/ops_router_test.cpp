// The router. Scores, choices and weights are compared with double precision, which chooses by
// sorting, and the backward with central differences; ties, groups, biases, scores that underflow.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "06_expert_parallel/kernels/ops_experts.h"
#include "core/ops.h"
#include "tests/test_files.h"
#include "tests/test_util.h"

namespace ultrascale {
namespace {

using ops::RouterScore, ops::RouterSettings;

struct Routed {
    Tensor experts, weights, scores;
};
Routed route(const Tensor& logits, const RouterSettings& settings, const Tensor& bias = {}) {
    const int64_t N = logits.rows(), E = logits.cols(), k = settings.top_k;
    Routed r = {integers(std::vector<int32_t>(size_t(N * k), -7), {N, k}),
                poisoned({N, k}, DType::fp32), poisoned({N, E}, DType::fp32)};
    ops::router_forward(r.experts, r.weights, r.scores, logits, bias, settings);
    return r;
}

Doubles scores_of(const Doubles& logits, RouterScore kind) {
    Doubles scores;
    const double highest = *std::ranges::max_element(logits);
    double sum = 0;
    for (const double x : logits) sum += std::exp(x - highest);
    for (const double x : logits)
        scores.push_back(kind == RouterScore::softmax ? std::exp(x - highest) / sum
                                                      : 1 / (1 + std::exp(-x)));
    return scores;
}

// Returns the k best experts of a token, by sorting all experts of its best groups.
std::vector<int> chosen(const Doubles& scores, const Doubles& bias, const RouterSettings& s) {
    const int E = int(scores.size()), size = E / int(s.groups);
    const auto value = [&](int e) { return scores[size_t(e)] + bias[size_t(e)]; };
    std::vector<int> groups(static_cast<size_t>(s.groups)), experts;
    std::iota(groups.begin(), groups.end(), 0);
    const auto group_score = [&](int g) {
        Doubles all;
        for (int e = g * size; e < (g + 1) * size; ++e) all.push_back(value(e));
        std::ranges::sort(all, std::greater());
        return all[0] + (size > 1 ? all[1] : 0);
    };
    std::ranges::stable_sort(groups, std::greater(), group_score);
    groups.resize(size_t(s.top_groups));
    std::ranges::sort(groups);
    for (const int g : groups)
        for (int e = g * size; e < (g + 1) * size; ++e) experts.push_back(e);
    std::ranges::stable_sort(experts, std::greater(), value);
    experts.resize(size_t(s.top_k));
    return experts;
}

Doubles weights_of(const Doubles& scores, const std::vector<int>& experts,
                   const RouterSettings& s) {
    Doubles weights;
    double sum = s.score == RouterScore::sigmoid ? 1e-20 : 0;
    for (const int e : experts) sum += scores[size_t(e)];
    for (const int e : experts)
        weights.push_back(scores[size_t(e)] / (s.renormalise ? sum : 1) * s.scaling);
    return weights;
}

struct Case {
    int64_t N, E;
    RouterSettings settings;
    bool bias = false;
};
const RouterScore softmax = RouterScore::softmax, sigmoid = RouterScore::sigmoid;
const std::vector<Case> cases = {
    {37, 8, {.top_k = 2}},  // Mixtral
    {5, 128, {.top_k = 8, .renormalise = false}},
    {9, 64, {.top_k = 6, .renormalise = false, .scaling = 16}},
    {33, 32, {sigmoid, 4, 8, 4, true, 2.5}, true},  // DeepSeek-V3's router, smaller
    {3, 256, {sigmoid, 8, 8, 4, true, 2.5}, true},
    {6, 9, {softmax, 3, 3, 2}, true},
    {4, 5, {softmax, 2, 5, 3}, true},  // groups of one
    {3, 1, {.top_k = 1}},
    {2, 33, {.top_k = 33}},
    {1, 1024, {sigmoid, 16, 16, 2}, true},
};

TEST(OpsRouter, ForwardAndBackward) {
    for (const auto& [N, E, s, biased] : cases) {
        SCOPED_TRACE(fmt::format("N {} E {} k {} of {} groups", N, E, s.top_k, s.groups));
        const int64_t k = s.top_k;
        const Tensor logits = random_tensor({N, E}, DType::fp32, 71),
                     bias = random_tensor({E}, DType::fp32, 72);
        ops::scale(bias, 0.1f);
        const Doubles x = to_double(logits), b = biased ? to_double(bias) : Doubles(size_t(E));
        const Routed got = route(logits, s, biased ? bias : Tensor());
        const Tensor dweights = random_tensor({N, k}, DType::fp32, 73),
                     dscores = random_tensor({N, E}, DType::fp32, 74),
                     dlogits = poisoned({N, E}, DType::fp32);
        const Doubles dw = to_double(dweights), ds = to_double(dscores);
        Doubles want_experts, want_weights, want_scores, want_gradient, want_without;
        for (int64_t n = 0; n < N; ++n) {
            const Doubles row(x.begin() + n * E, x.begin() + (n + 1) * E);
            const Doubles scores = scores_of(row, s.score);
            const std::vector<int> experts = chosen(scores, b, s);
            const Doubles weights = weights_of(scores, experts, s);
            want_experts.insert(want_experts.end(), experts.begin(), experts.end());
            want_weights.insert(want_weights.end(), weights.begin(), weights.end());
            want_scores.insert(want_scores.end(), scores.begin(), scores.end());
            for (const bool with : {true, false}) {
                const auto loss = [&](const Doubles& at) {
                    const Doubles p = scores_of(at, s.score), w = weights_of(p, experts, s);
                    double sum = 0;
                    for (int64_t j = 0; j < k; ++j) sum += dw[size_t(n * k + j)] * w[size_t(j)];
                    for (int64_t e = 0; with && e < E; ++e)
                        sum += ds[size_t(n * E + e)] * p[size_t(e)];
                    return sum;
                };
                const Doubles g = numerical_gradient(loss, row);
                Doubles& to = with ? want_gradient : want_without;
                to.insert(to.end(), g.begin(), g.end());
            }
        }
        EXPECT_EQ(to_double(got.experts), want_experts);
        EXPECT_LT(relative_error(got.weights, want_weights), 2e-6);
        EXPECT_LT(relative_error(got.scores, want_scores), 2e-6);
        ops::router_backward(dlogits, dweights, got.scores, got.experts, s, dscores);
        EXPECT_LT(relative_error(dlogits, want_gradient), 1e-5);
        ops::router_backward(dlogits, dweights, got.scores, got.experts, s);
        if (E > 1) {
            EXPECT_LT(relative_error(dlogits, want_without), 1e-5);
        }
    }
}

TEST(OpsRouter, OfEqualScoresTheLowerIndex) {
    const int64_t E = 40;
    const Tensor equal = tensor_of(Doubles(size_t(2 * E), 0.25), {2, E}, DType::fp32);
    EXPECT_EQ(to_double(route(equal, {.top_k = 3}).experts), (Doubles{0, 1, 2, 0, 1, 2}));
    Doubles two(static_cast<size_t>(E));  // one expert on each side of a warp's end
    two[31] = two[33] = 1;
    const Tensor row = tensor_of(two, {1, E}, DType::fp32);
    EXPECT_EQ(to_double(route(row, {.top_k = 4}).experts), (Doubles{31, 33, 0, 1}));
    // Groups may have equal scores, too.
    EXPECT_EQ(to_double(route(equal, {softmax, 3, 4, 2}).experts), (Doubles{0, 1, 2, 0, 1, 2}));
}

// Negative biases make every choice score negative. Experts of other groups must then not win with
// the 0 by which a well-known bug masks them; and a bias must not enter the weights.
TEST(OpsRouter, NegativeBiasesAndGroups) {
    const Tensor logits = tensor_of({0, 0, 0, 0, 2, 1, 2, 1}, {1, 8}, DType::fp32),
                 bias = tensor_of(Doubles(8, -3), {8}, DType::fp32);
    RouterSettings s = {sigmoid, 2, 4, 1};
    const Routed right = route(logits, s, bias);
    EXPECT_EQ(to_double(right.experts), (Doubles{4, 5}));
    const double a = 1 / (1 + std::exp(-2.0)), b = 1 / (1 + std::exp(-1.0));
    EXPECT_LT(relative_error(right.weights, {a / (a + b), b / (a + b)}), 2e-6);
    s.masked = 0;
    EXPECT_EQ(to_double(route(logits, s, bias).experts), (Doubles{0, 1}));
}

// These come from Hugging Face's DeepSeek-V3 router (tests/reference/make_experts_reference.py).
TEST(OpsRouter, ChoosesAsDeepSeekV3) {
    const auto cases = nlohmann::json::parse(test::slurp(test::reference("deepseek_router.json")));
    const auto numbers = [](const nlohmann::json& rows) {
        Doubles all;
        for (const auto& row : rows)
            for (const auto& x : row) all.push_back(x.get<double>());
        return all;
    };
    ASSERT_EQ(cases.size(), 3u);
    for (const auto& c : cases) {
        const int64_t N = int64_t(c["logits"].size()), E = int64_t(c["bias"].size());
        const RouterSettings s = {sigmoid,
                                  int64_t(c["experts"][0].size()),
                                  c["groups"].get<int64_t>(),
                                  c["top_groups"].get<int64_t>(),
                                  c["renormalise"].get<bool>(),
                                  c["scaling"].get<double>()};
        const Routed got = route(tensor_of(numbers(c["logits"]), {N, E}, DType::fp32), s,
                                 tensor_of(c["bias"].get<Doubles>(), {E}, DType::fp32));
        const Doubles experts = to_double(got.experts), weights = to_double(got.weights),
                      want_experts = numbers(c["experts"]), want_weights = numbers(c["weights"]);
        // Hugging Face gives a token's choices in any order.
        std::map<std::pair<int64_t, double>, double> mine, theirs;
        for (size_t i = 0; i < experts.size(); ++i) {
            mine[{int64_t(i) / s.top_k, experts[i]}] = weights[i];
            theirs[{int64_t(i) / s.top_k, want_experts[i]}] = want_weights[i];
        }
        ASSERT_EQ(mine.size(), theirs.size());
        for (const auto& [choice, weight] : theirs) {
            ASSERT_TRUE(mine.count(choice)) << "token " << choice.first << " " << choice.second;
            EXPECT_NEAR(mine[choice], weight, 2e-6 * weight);
        }
    }
}

// All sigmoids underflow to 0 or nearly 0; weights and gradients stay finite.
TEST(OpsRouter, ScoresThatUnderflow) {
    const RouterSettings s = {.score = sigmoid, .top_k = 2};
    const Tensor logits = tensor_of(Doubles(8, -200), {2, 4}, DType::fp32);
    const Routed got = route(logits, s);
    for (const double w : to_double(got.weights)) EXPECT_TRUE(std::isfinite(w) && w >= 0) << w;
    const Tensor dlogits = poisoned({2, 4}, DType::fp32);
    ops::router_backward(dlogits, random_tensor({2, 2}, DType::fp32, 75), got.scores, got.experts,
                         s);
    for (const double g : to_double(dlogits)) EXPECT_TRUE(std::isfinite(g)) << g;
}

TEST(OpsRouter, MistakesAreFound) {
    const Tensor logits = random_tensor({2, 8}, DType::fp32, 76);
    route(logits, {.top_k = 2});
    EXPECT_THROW(route(logits, {.top_k = 9}), std::logic_error);
    EXPECT_THROW(route(logits, {softmax, 2, 3, 1}), std::logic_error);
    EXPECT_THROW(route(logits, {softmax, 3, 4, 1}), std::logic_error);
    EXPECT_THROW(route(random_tensor({1, 1025}, DType::fp32, 77), {}), std::logic_error);
    EXPECT_THROW(route(logits, {}, random_tensor({7}, DType::fp32, 78)), std::logic_error);
}

}  // namespace
}  // namespace ultrascale
