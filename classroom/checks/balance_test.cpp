// Exercise 06.4: a mean load that is not an integer, and another gamma.
#include <gtest/gtest.h>

#include "06_expert_parallel/4_balance.h"

namespace ultrascale {
using namespace ultrascale::expert_parallel;
namespace {

TEST(BalanceByHand, AMeanBetweenTwoLoads) {
    EXPECT_EQ(moved_bias({0, 0, 0, 0}, {1, 2, 2, 2}, 0.5),  // 1.75
              (std::vector<float>{0.5f, -0.5f, -0.5f, -0.5f}));
    EXPECT_EQ(moved_bias({1, 1, 1}, {7, 0, 3}, 0.125),  // 3.33
              (std::vector<float>{0.875f, 1.125f, 1.125f}));
}

}  // namespace
}  // namespace ultrascale
