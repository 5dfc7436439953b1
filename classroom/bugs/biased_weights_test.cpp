// Exercise 06.b2: a router's choice for a token.
#include <gtest/gtest.h>

#include <cmath>

#include "06_expert_parallel/2_route.h"

namespace ultrascale {
using namespace ultrascale::expert_parallel;
namespace {

using ops::RouterScore;

TEST(BiasedWeights, IsCaught) {
    // exercise 06.b2 begin: a bias that changes no choice
    const ops::RouterSettings settings{.score = RouterScore::sigmoid, .top_k = 2};
    const std::vector<float> logits{2, 1, -3, -4}, bias{0.5f, 0.1f, 0, 0};
    const Route with = route_token(logits, bias, settings),
                without = route_token(logits, {}, settings);
    ASSERT_EQ(with.experts, without.experts);
    for (size_t j = 0; j < 2; ++j) EXPECT_NEAR(with.weights[j], without.weights[j], 1e-12);
    // exercise 06.b2 end
}

}  // namespace
}  // namespace ultrascale
