// Exercises 06.1, 06.2 and 06.3: a token's route computed by hand, in cases that the router's own
// tests leave out: the scores that are compared, no bias, groups of one expert, ties, another
// scaling, zeros.
#include <gtest/gtest.h>

#include <cmath>

#include "06_expert_parallel/2_route.h"

namespace ultrascale {
using namespace ultrascale::expert_parallel;
namespace {

using ops::RouterScore;
using ops::RouterSettings;

const std::vector<float> logits{1, -1, 2, 0, 0.5f, -2}, bias{0.25f, -0.5f, 0, 0.75f, -0.25f, 1};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(RouteByHand, ChoosesOnScoresAndBias) {
    const Route route =
        route_token(logits, bias, {.score = RouterScore::sigmoid, .top_k = 2, .scaling = 1.5});
    ASSERT_EQ(route.choice.size(), 6u);
    for (size_t e = 0; e < 6; ++e) {
        EXPECT_NEAR(route.scores[e], sigmoid(double(logits[e])), 1e-12) << "score " << e;
        EXPECT_NEAR(route.choice[e], sigmoid(double(logits[e])) + double(bias[e]), 1e-12)
            << "choice " << e;
    }
    EXPECT_EQ(route.experts, (std::vector<int>{3, 5}));
    const double a = sigmoid(0), b = sigmoid(-2);
    EXPECT_NEAR(route.weights[0], 1.5 * a / (a + b), 1e-12);
    EXPECT_NEAR(route.weights[1], 1.5 * b / (a + b), 1e-12);
}

TEST(RouteByHand, WithoutABias) {
    const Route route = route_token(logits, {}, {.score = RouterScore::sigmoid, .top_k = 3});
    EXPECT_EQ(route.choice, route.scores);
    EXPECT_EQ(route.experts, (std::vector<int>{2, 0, 4}));
}

TEST(RouteByHand, WhatIsHiddenIsMinusInfinity) {
    const Route route = route_token(
        logits, bias, {.score = RouterScore::sigmoid, .top_k = 2, .groups = 3, .top_groups = 1});
    ASSERT_EQ(route.choice.size(), 6u);
    for (const size_t e : {0, 1, 4, 5}) EXPECT_EQ(route.choice[e], -INFINITY) << "choice " << e;
    EXPECT_NEAR(route.choice[3], 1.25, 1e-12);
    EXPECT_EQ(route.experts, (std::vector<int>{3, 2}));
}

TEST(RouteByHand, OfEqualsTheLowerOne) {
    const Route route = route_token(std::vector<float>(5, 0.5f), {}, {.top_k = 2});
    EXPECT_EQ(route.experts, (std::vector<int>{0, 1}));
}

std::vector<double> kept(std::vector<double> choice, int groups, int top_groups) {
    keep_best_groups(choice, {.groups = groups, .top_groups = top_groups});
    return choice;
}

TEST(GroupsByHand, OfOneExpert) {
    EXPECT_EQ(kept({0.1, 0.4, -0.2, 0.3}, 4, 2),
              (std::vector<double>{-INFINITY, 0.4, -INFINITY, 0.3}));
    EXPECT_EQ(kept({-0.1, -0.4, -0.2}, 3, 1), (std::vector<double>{-0.1, -INFINITY, -INFINITY}));
}

TEST(GroupsByHand, TheTwoBestOfThreeCount) {
    EXPECT_EQ(kept({-9, 0.5, 0.25, 0.75, -1, -1}, 2, 1),
              (std::vector<double>{-9, 0.5, 0.25, -INFINITY, -INFINITY, -INFINITY}));
}

TEST(GroupsByHand, OfEqualsTheLowerOne) {
    EXPECT_EQ(kept({0.5, 0.25, 0.25, 0.5, 0.375, 0.375}, 3, 2),
              (std::vector<double>{0.5, 0.25, 0.25, 0.5, -INFINITY, -INFINITY}));
}

std::vector<double> gradient(std::vector<double> scores, std::vector<int> experts,
                             std::vector<double> dweights, const RouterSettings& settings) {
    Route route{.scores = std::move(scores), .experts = std::move(experts)};
    set_weights(route, settings);
    return score_gradient(route, dweights, settings);
}
void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t e = 0; e < want.size(); ++e)
        EXPECT_NEAR(got[e], want[e], 1e-12 * std::max(1.0, std::abs(want[e]))) << "expert " << e;
}

TEST(GradientByHand, OfTwoOfFourScores) {
    const std::vector<double> scores{0.5, 0.25, 0.125, 0.125}, dweights{1, -2};
    expect_near(gradient(scores, {2, 0}, dweights, {.top_k = 2, .scaling = 1.5}),
                {-1.44, 0, 5.76, 0});
    expect_near(
        gradient(scores, {2, 0}, dweights, {.top_k = 2, .renormalise = false, .scaling = 1.5}),
        {-3, 0, 1.5, 0});
}

TEST(GradientByHand, OfScoresThatAreAllZero) {
    expect_near(gradient({0, 0, 0}, {0, 1}, {3, -1}, {.score = RouterScore::sigmoid, .top_k = 2}),
                {3e20, -1e20, 0});
}

TEST(GradientByHand, OfAConstantWeightIsZero) {
    EXPECT_EQ(gradient({0.3, 0.7}, {1}, {5}, {.score = RouterScore::sigmoid, .top_k = 1}),
              std::vector<double>(2, 0));
    expect_near(gradient({0.3, 0.7}, {1}, {5}, {.top_k = 1, .renormalise = false, .scaling = 2}),
                {0, 10});
}

}  // namespace
}  // namespace ultrascale
