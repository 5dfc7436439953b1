// Exercise 06.b1: a router's choice for a token.
#include <gtest/gtest.h>

#include <cmath>

#include "06_expert_parallel/2_route.h"

namespace ultrascale {
using namespace ultrascale::expert_parallel;
namespace {

using ops::RouterScore;

TEST(MaskedGroups, IsCaught) {
    // exercise 06.b1 begin: a bias that makes every choice negative
    const ops::RouterSettings settings{
        .score = RouterScore::sigmoid, .top_k = 1, .groups = 2, .top_groups = 1};
    const std::vector<float> logits{0, 1, 2, 3}, bias{-5, -6, -7, -8};
    EXPECT_EQ(route_token(logits, bias, settings).experts, (std::vector<int>{0}));
    // exercise 06.b1 end
}

}  // namespace
}  // namespace ultrascale
