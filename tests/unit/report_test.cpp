#include "report.h"

#include <gtest/gtest.h>

#include <functional>

namespace ultrascale {
namespace {

// Rank 0's figures are what is printed; one that is off elsewhere fails the run on all ranks, and is named.
TEST(Report, WhatIsOffOnOneRankFailsOnAll) {
    const int n = Communicator::world().size(), last = n - 1, me = Communicator::world().rank();
    Report report("test", Options{}, StepShape{}, 1);
    memory_reset_peak();
    communication_reset_counts();
    const MemoryByCategory now = memory_now();
    const MemoryEstimate held{.parameters = now[int(Memory::parameter)],
                              .gradients = now[int(Memory::gradient)],
                              .optimizer = now[int(Memory::optimizer)],
                              .peak_activations = now[int(Memory::activation)],
                              .peak_communication = now[int(Memory::communication)]};
    const auto has = [](const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; };
    testing::internal::CaptureStdout();
    EXPECT_TRUE(report.memory(held));
    EXPECT_TRUE(report.communication({}, 1));
    EXPECT_FALSE(has(testing::internal::GetCapturedStdout(), "MISMATCH"));

    const Tensor extra = me == last ? Tensor::empty({1}, DType::fp32, Memory::gradient) : Tensor();
    PredictedCommunication more;
    if (me == last) more.add(Collective::all_reduce, 1, 4, n);
    for (const auto& check :
         {std::function([&] { return report.memory(held); }), std::function([&] { return report.communication(more, 1); })}) {
        testing::internal::CaptureStdout();
        EXPECT_FALSE(check());
        const std::string printed = testing::internal::GetCapturedStdout();
        if (me == 0) {
            EXPECT_TRUE(has(printed, "MISMATCH")) << printed;
            EXPECT_EQ(has(printed, fmt::format("on rank {}: not as predicted", last)), n > 1) << printed;
        }
    }
}

}  // namespace
}  // namespace ultrascale
