// 03_tensor_parallel: results that are computed by formula, without a run.
#include <gtest/gtest.h>

#include "03_tensor_parallel/lab/linear_order.h"
#include "03_tensor_parallel/lab/scaling.h"

namespace ultrascale {
using namespace ultrascale::tensor_parallel;
namespace {

TEST(TensorScaling, MeetsThePlaybooksRowsThatWereNotFitted) {
    const StepShape shape = playbook_shape();
    EXPECT_NEAR(double(parameter_count(shape.config)), 3.57e9, 0.01e9);
    const ClusterRates rates = rates_of_playbook();
    EXPECT_NEAR(rate_of_gpu(shape, 2, rates), 364e12, 1e9);  // fitted
    EXPECT_NEAR(rate_of_gpu(shape, 8, rates), 280e12, 1e9);
    EXPECT_NEAR(rate_of_gpu(shape, 16, rates), 158e12, 1e9);
    EXPECT_NEAR(rate_of_gpu(shape, 4, rates) / 346e12, 1, 0.05);  // predicted
    EXPECT_NEAR(rate_of_gpu(shape, 32, rates) / 93e12, 1, 0.05);
    EXPECT_GT(rates.in_node, 1.5 * rates.in_network);
}

TEST(TensorScaling, ParametersOfARank) {
    for (const char* name : {"nano", "llama-3.2-1b", "llama-3-70b"}) {
        const LlamaConfig config = preset(name);
        EXPECT_EQ(parameters_of_rank(config, 1), parameter_count(config)) << name;
    }
    // Llama-3-70B on 16 ranks has 8 key-value heads twice, and norms on every rank.
    const LlamaConfig c = preset("llama-3-70b");
    const int64_t all = parameter_count(c), norms = c.layers * 2 * c.hidden + c.hidden,
                  keys = c.layers * 2 * c.hidden * c.kv_size();
    EXPECT_EQ(parameters_of_rank(c, 16), (all - norms - keys) / 16 + norms + keys / 8);
}

TEST(TensorScaling, SequenceParallelismDividesWhatTensorParallelismKeeps) {
    const StepShape shape{.config = preset("llama-3-70b"),
                          .model = {.dtype = DType::bf16},
                          .grad_dtype = DType::fp32,
                          .micro_batch = 1,
                          .seq = 16384};
    const auto peak = [&](int tp, bool sp) {
        return double(memory_of_rank(shape, tp, sp).peak_activations);
    };
    EXPECT_EQ(peak(1, false), peak(1, true));
    EXPECT_GT(peak(32, false), peak(1, false) / 4);  // 4 s b h a layer stay
    EXPECT_LT(peak(32, true), peak(1, true) / 25);
    EXPECT_GT(double(memory_of_rank(shape, 16, true).total()), 80e9);
    EXPECT_LT(double(memory_of_rank(shape, 32, true).total()), 80e9);
}

// Exercise 5 of the README: tp 6 is worthwhile inside a node, not even tp 2 over a network.
TEST(TensorScaling, RatioOfAppendixA3) {
    EXPECT_NEAR(a3_ratio(6, 8192, 600e12, 400e9, 2), 0.9155, 1e-4);
    EXPECT_GT(a3_ratio(7, 8192, 600e12, 400e9, 2), 1);
    EXPECT_GT(a3_ratio(2, 8192, 600e12, 50e9, 2), 1);
}

TEST(TensorScaling, RowThenColumnSendsMore) {
    EXPECT_DOUBLE_EQ(sent_by_row_then_column(8, 1024, 4096) / sent_by_column_then_row(8, 1024),
                     4.5);
}

}  // namespace
}  // namespace ultrascale
