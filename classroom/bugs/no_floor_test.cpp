// Exercise 08.b1: a loss scale.
#include <gtest/gtest.h>

#include <cmath>

#include "08_mixed_precision/4_loss_scale.h"

namespace ultrascale {
using namespace ultrascale::mixed_precision;
namespace {

// Runs a step whose only gradient is this number. Returns whether the step was skipped.
[[maybe_unused]] bool step(LossScale& scale, float gradient) {
    const Tensor one =
        Tensor::from_host<float>(std::vector<float>{gradient}, {1}, Memory::workspace);
    scale.agree({{one}}, Communicator::world());
    return scale.end_step(1);
}

TEST(NoFloor, IsCaught) {
    ParameterList parameters;
    LossScale scale({.scaled = true, .start = 4, .growth_interval = 2}, parameters);
    // exercise 08.b1 begin: many overflows in a row
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(step(scale, INFINITY));
    EXPECT_GE(scale.scale(), 1);
    // exercise 08.b1 end
}

}  // namespace
}  // namespace ultrascale
