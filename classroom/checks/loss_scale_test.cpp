// Exercise 08.2: growth intervals that the loss scale's own tests do not have, and what comes after
// the first growth.
#include <gtest/gtest.h>

#include <cmath>

#include "08_mixed_precision/4_loss_scale.h"

namespace ultrascale {
using namespace ultrascale::mixed_precision;
namespace {

// Returns the scale after steps with one gradient each.
double after(LossScale& scale, int steps, float gradient) {
    const Tensor one =
        Tensor::from_host<float>(std::vector<float>{gradient}, {1}, Memory::workspace);
    for (int i = 0; i < steps; ++i) scale.agree({{one}}, Communicator::world()), scale.end_step(i);
    return scale.scale();
}

TEST(LossScaleByHand, EveryIntervalOfGoodStepsInARow) {
    for (const int interval : {2, 5, 8}) {
        ParameterList parameters;
        LossScale scale({.scaled = true, .start = 64, .growth_interval = interval}, parameters);
        EXPECT_EQ(after(scale, interval - 1, 1), 64) << "interval " << interval;
        EXPECT_EQ(after(scale, 1, 1), 128) << "interval " << interval;
        EXPECT_EQ(after(scale, interval - 1, 1), 128) << "counts anew after it has doubled";
        EXPECT_EQ(after(scale, 1, 1), 256) << "doubles a second time";
        EXPECT_EQ(after(scale, interval - 1, 1), 256);
        EXPECT_EQ(after(scale, 1, INFINITY), 128);
        EXPECT_EQ(after(scale, interval - 1, 1), 128) << "counts anew after an overflow";
        EXPECT_EQ(after(scale, 1, 1), 256);
    }
}

TEST(LossScaleByHand, LeavesTheCeilingAndTheFloor) {
    ParameterList parameters;
    LossScale scale({.scaled = true, .start = 2, .growth_interval = 2}, parameters);
    EXPECT_EQ(after(scale, 3, NAN), LossScaleOptions::floor);
    EXPECT_EQ(after(scale, 2, 1), 2 * LossScaleOptions::floor);
    EXPECT_EQ(after(scale, 60, 1), LossScaleOptions::ceiling);
    EXPECT_EQ(after(scale, 1, NAN), LossScaleOptions::ceiling / 2);
}

}  // namespace
}  // namespace ultrascale
