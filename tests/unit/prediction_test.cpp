// A prediction is a sum of parts, and the counted bytes must equal it in every group.
#include "lab/predict/prediction.h"

#include <gtest/gtest.h>

#include "lab/predict/estimate.h"

namespace ultrascale {
namespace {

TEST(Prediction, IsASumOfParts) {
    const StepShape shape{.config = preset("nano"), .model = {}, .micro_batch = 2, .seq = 64};
    const int64_t n = parameter_count(shape.config);
    const Prediction whole = predict_one_device(shape, n);
    Prediction sum;
    add_parameters(sum, n - 1000, shape);
    add_parameters(sum, 1000, shape);
    add_activations(sum, local_sizes(shape));
    add_flops(sum, shape, n);
    EXPECT_EQ(sum.memory.total(), whole.memory.total());
    EXPECT_EQ(sum.memory.gradients, 4 * n);
    EXPECT_EQ(sum.memory.optimizer, 8 * n);
    EXPECT_DOUBLE_EQ(sum.flops_per_token, whole.flops_per_token);

    Prediction buffers;
    buffers.memory = {.peak_communication = 100, .one_after_the_other = true};
    sum += buffers;
    EXPECT_EQ(sum.memory.peak_communication, 100);
    EXPECT_EQ(sum.memory.total(),
              whole.memory.total());  // less than activations, at another moment
}

TEST(Prediction, OfCommunicationByGroupAndKind) {
    Prediction p;
    p.communication.add({"tp", 4}, Collective::all_reduce, 2, 1000);
    p.communication.add({"dp", 2}, Collective::all_reduce, 1, 500);
    p.communication.add({"tp", 4}, Collective::all_gather, 1, 400);
    p += p;
    const Prediction run = p.times(3);
    EXPECT_EQ(run.communication.groups.at("tp")[size_t(Collective::all_reduce)].calls, 12);
    EXPECT_EQ(run.communication.groups.at("dp")[size_t(Collective::all_reduce)].bytes, 3000);
    const auto all_reduces = run.communication.of(Collective::all_reduce);
    EXPECT_EQ(all_reduces.calls, 18);
    EXPECT_DOUBLE_EQ(all_reduces.sent, 6 * (1000 * 1.5 + 500 * 1.0));
    EXPECT_DOUBLE_EQ(run.communication.of(Collective::all_gather).sent, 6 * 300);
    EXPECT_EQ(run.memory.total(), p.memory.total());
}

// Sizes that overflow must not become small numbers.
TEST(Prediction, Saturates) {
    MemoryEstimate m{.parameters = int64_t(9e18), .peak_activations = int64_t(8e18)};
    m += m;
    EXPECT_EQ(m.parameters, int64_t(9e18));
    EXPECT_EQ(m.peak_activations, int64_t(9e18));
    EXPECT_EQ(m.total(), int64_t(9e18));
}

TEST(Prediction, OfPeaksHasATolerance) {
    EXPECT_TRUE(peak_as_predicted(1000, 1010));
    EXPECT_TRUE(peak_as_predicted(1000, 990));
    EXPECT_FALSE(peak_as_predicted(1000, 1011));
    EXPECT_TRUE(peak_as_predicted(0, 0));
    EXPECT_FALSE(peak_as_predicted(0, 1));
}

}  // namespace
}  // namespace ultrascale
