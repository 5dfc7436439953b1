// Exercise 06.b3: a router's choice for a token.
#include <gtest/gtest.h>

#include <cmath>

#include "06_expert_parallel/2_route.h"

namespace ultrascale {
using namespace ultrascale::expert_parallel;
namespace {

using ops::RouterScore;

TEST(Underflow, IsCaught) {
    // exercise 06.b3 begin: logits so small that every sigmoid is 0
    const ops::RouterSettings settings{.score = RouterScore::sigmoid, .top_k = 2};
    const Route route = route_token(std::vector<float>(4, -1000.0f), {}, settings);
    for (const double weight : route.weights) EXPECT_TRUE(std::isfinite(weight));
    // exercise 06.b3 end
}

}  // namespace
}  // namespace ultrascale
