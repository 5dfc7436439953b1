// 08_mixed_precision's loss scale: when it halves, doubles, and stops; and histories of delayed
// scales.
#include <gtest/gtest.h>

#include "08_mixed_precision/4_loss_scale.h"
#include "08_mixed_precision/5_delayed_scales.h"
#include "08_mixed_precision/8_storage.h"

namespace ultrascale {
using namespace ultrascale::mixed_precision;
namespace {

Tensor gradient(float x) {
    const std::vector<float> values{1, x, 2};
    return Tensor::from_host<float>(values, {3}, Memory::gradient);
}

// Ends a step whose gradients contain x; returns whether it was skipped.
bool step(LossScale& scale, float x, int64_t number = 1) {
    scale.agree({{gradient(1)}, {gradient(x)}}, Communicator::world());
    return scale.end_step(number);
}

TEST(PrecisionLossScale, HalvesAtOverflowAndDoublesAfterGoodSteps) {
    ParameterList parameters;
    LossScale scale({.scaled = true, .start = 1024, .growth_interval = 3}, parameters);
    EXPECT_EQ(scale.scale(), 1024);
    EXPECT_FALSE(step(scale, 5));
    EXPECT_FALSE(step(scale, 5));
    EXPECT_TRUE(step(scale, INFINITY, 3));
    EXPECT_EQ(scale.scale(), 512);
    EXPECT_TRUE(step(scale, NAN, 4));
    EXPECT_EQ(scale.scale(), 256);
    for (int good = 0; good < 3; ++good) {  // counted anew after an overflow
        EXPECT_EQ(scale.scale(), 256);
        EXPECT_FALSE(step(scale, -1e30f));
    }
    EXPECT_EQ(scale.scale(), 512);
    EXPECT_EQ(scale.skipped(), (std::vector<int64_t>{3, 4}));
}

TEST(PrecisionLossScale, HasAFloorAndACeiling) {
    ParameterList parameters;
    LossScale scale({.scaled = true, .start = 4, .growth_interval = 1}, parameters);
    for (int i = 0; i < 10; ++i) step(scale, INFINITY);
    EXPECT_EQ(scale.scale(), 1);
    for (int i = 0; i < 30; ++i) step(scale, 1);
    EXPECT_EQ(scale.scale(), LossScaleOptions::ceiling);
}

// Gradients in 16 bits keep the loss scale beside them. One of 3 is 3 in every step.
TEST(PrecisionLossScale, GradientsIn16BitsHaveTheScaleOfTheirStep) {
    ParameterList parameters;
    parameters.add({.name = "weight", .shape = {2, 3}});
    Recipe recipe = *find_recipe("fp16");
    ASSERT_TRUE(leave_out(recipe, "accumulation"));
    Storage storage(parameters, recipe, {});
    LossScale scale({.scaled = true, .start = 4}, parameters);
    for (const double now : {4, 2, 1, 1}) {
        ASSERT_EQ(scale.scale(), now);
        const Tensor gradient = storage.all()[0].gradient;
        ops::fill(gradient, float(3 * now));
        storage.unscale(now);
        EXPECT_EQ(storage.squared_norm().to_host<double>()[0], 6 * 3 * 3) << now;
        EXPECT_EQ(Storage::unscaled(storage.all()[0]).to_host<float>(), std::vector<float>(6, 3));
        step(scale, INFINITY);
    }
}

TEST(PrecisionLossScale, AStaticScaleStaysAndStillSkips) {
    ParameterList parameters;
    LossScale scale({.scaled = true, .fixed = 8, .growth_interval = 1}, parameters);
    EXPECT_TRUE(step(scale, INFINITY));
    EXPECT_FALSE(step(scale, 1));
    EXPECT_EQ(scale.scale(), 8);
}

TEST(PrecisionLossScale, WithoutOneNothingIsSkipped) {
    ParameterList parameters;
    LossScale scale({}, parameters);
    EXPECT_EQ(scale.scale(), 1);
    EXPECT_FALSE(step(scale, INFINITY));
    EXPECT_FALSE(scale.skip());
    EXPECT_TRUE(parameters.buffers().empty());
}

TEST(PrecisionLossScale, IsResumedFromItsBuffer) {
    ParameterList parameters, later;
    const LossScaleOptions options{.scaled = true, .start = 64, .growth_interval = 3};
    LossScale scale(options, parameters), resumed(options, later);
    step(scale, INFINITY), step(scale, 1), step(scale, 1);
    const std::vector<float> state = parameters.buffers()[0].tensor.to_host<float>();
    Tensor buffer = later.buffers()[0].tensor;
    buffer.copy_from_host(state.data());
    resumed.resume();
    EXPECT_EQ(resumed.scale(), 32);
    step(resumed, 1);
    EXPECT_EQ(resumed.scale(), 64);  // the third good step
}

TEST(PrecisionScaling, ADelayedScaleRemembersTheLargestMagnitude) {
    ParameterList parameters;
    AmaxHistories histories(3, 0);
    const size_t x = histories.add(DType::e4m3), dy = histories.add(DType::e5m2);
    histories.allocate(parameters);
    EXPECT_TRUE(histories.is_empty());
    const auto after = [&](float amax_x, float amax_dy) {
        ops::fill(histories.amax(x), amax_x), ops::fill(histories.amax(dy), amax_dy);
        histories.end_step(Communicator::world());
        return histories.scale(x).to_host<float>()[0];
    };
    EXPECT_FLOAT_EQ(after(448, 57344), 1);
    EXPECT_FALSE(histories.is_empty());
    EXPECT_FLOAT_EQ(histories.scale(dy).to_host<float>()[0], 1);
    EXPECT_FLOAT_EQ(after(224, 1), 1);
    EXPECT_FLOAT_EQ(after(896, 1), 2);
    EXPECT_FLOAT_EQ(after(1, 1), 2);
    EXPECT_FLOAT_EQ(after(1, 1), 2);
    EXPECT_FLOAT_EQ(after(1, 1), 1 / 448.0f);  // 896 is forgotten
    EXPECT_EQ(histories.amax(x).to_host<float>()[0], 0);
}

}  // namespace
}  // namespace ultrascale
