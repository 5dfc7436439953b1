#include <gtest/gtest.h>

#include <ctime>

#include "09_5d_parallel/planner/published.h"
#include "09_5d_parallel/planner/rule_of_thumb.h"
#include "tests/test_files.h"

namespace ultrascale {
using namespace ultrascale::context_parallel;
using namespace ultrascale::expert_parallel;
using namespace ultrascale::five_d;
using namespace ultrascale::mixed_precision;
using namespace ultrascale::pipeline;
using namespace ultrascale::tensor_parallel;
using namespace ultrascale::zero;
namespace {

PlanFor plan_for(const std::string& model, int64_t gpus, int64_t sequences, int64_t seq = 4096) {
    return {.shape = {.config = preset(model),
                      .model = {.dtype = DType::bf16},
                      .grad_dtype = DType::fp32,
                      .micro_batch = 1,
                      .seq = seq},
            .hardware = find_hardware("h100"),
            .gpus = gpus,
            .sequences = sequences};
}

// What planner/README.md promises.
TEST(Published, RowsAreWithinTwelvePercentOnAverage) {
    const std::vector<PublishedRow> rows = published_rows();
    const Fit fitted = fit(rows);
    EXPECT_NEAR(fitted.hardware.product_share, find_hardware("h100").product_share, 1e-9)
        << "the preset is the fitted one";
    std::vector<double> halves[2];
    for (size_t i = 0; i < rows.size(); ++i) {
        MemoryModel memory(rows[i].shape);
        halves[i % 2].push_back(compare(rows[i], fitted.hardware, memory).error);
    }
    EXPECT_LT(mean_error(halves[0]), 0.08);
    EXPECT_LT(mean_error(halves[1]), 0.08);

    Hardware plain = fitted.hardware;
    plain.tensor_hidden = 0;
    std::vector<double> predicted, published;
    for (const PublishedRow& row : playbook_rows()) {
        MemoryModel memory(row.shape, row.program);
        predicted.push_back(compare(row, plain, memory).mfu), published.push_back(row.mfu);
        // What the allocator leaves idle is in the published figure, perhaps, and not in ours.
        const double bytes = double(memory.of(row.plan, 0).most),
                     of_rank = row.memory_gb * (1 << 30);
        EXPECT_LT(bytes, of_rank) << row.name;
        EXPECT_GT(bytes, 0.69 * of_rank) << row.name;
    }
    EXPECT_GT(rank_correlation(predicted, published), 0.8);
}

// published.h: Megatron-LM's 32B, whose four sequences a replica must have been one micro-batch. As
// four, the last backward and the next forward hide a quarter of what the step could: even with
// products as fast as alone on an H100 (0.71 of the peak) and nothing else to do, 46 % could not be
// reached.
TEST(Published, ManyMicroBatchesCannotHideGradientsOverOneCard) {
    const std::vector<PublishedRow> rows = published_rows();
    const PublishedRow& row = rows[3];
    ASSERT_EQ(row.name, "Megatron-LM 32B");
    EXPECT_NEAR(row.mfu, 46.4, 0.1);
    const double parameters = double(parameter_count(row.shape.config)) / 8, card = 50e9,
                 sums = parameters * 4 * 47 / 48 / card, gathers = parameters * 2 * 47 / 48 / card;
    const LlamaConfig& c = row.shape.config;
    const double flops =
        (model_flops_per_token(c, parameter_count(c), 4096) - 6 * double(c.vocab * c.hidden)) * 4 *
        4096 / 8;
    const double compute = flops / (0.71 * 989.5e12);
    const auto reached = [&](double m) {
        const double step = compute + std::max(0.0, sums - compute / m * 2 / 3) +
                            std::max(0.0, gathers - compute / m / 3);
        return 100 * flops / step / 989.5e12;
    };
    EXPECT_LT(reached(4), row.mfu);
    EXPECT_NEAR(reached(1), 71, 1e-9);  // all of it is hidden

    // And by the planner's formulas, which say so of any layout.
    MemoryModel memory(row.shape);
    PublishedRow in_four = row;
    in_four.plan.micro_batch = 1, in_four.plan.micro_batches = 4;
    Hardware h100 = find_hardware("h100");
    h100.tensor_hidden = 0.9;
    const Compared one = compare(row, h100, memory), four = compare(in_four, h100, memory);
    EXPECT_GT(four.cost.data, 5 * one.cost.data);
    EXPECT_NEAR(one.error, 0, 0.12);
}

TEST(Published, RankCorrelation) {
    EXPECT_DOUBLE_EQ(rank_correlation({1, 2, 3, 4}, {10, 20, 40, 80}), 1);
    EXPECT_DOUBLE_EQ(rank_correlation({1, 2, 3, 4}, {4, 3, 2, 1}), -1);
    EXPECT_NEAR(rank_correlation({1, 2, 3, 4}, {1, 2, 4, 3}), 0.8, 1e-12);
}

// The formula of a pipeline with uneven stages beside 05's simulator.
TEST(Planner, PipelinesAreAsSimulated) {
    const PlanFor what = plan_for("llama-3-8b", 16, 64);
    Planner planner(what);
    for (const Plan& plan : {Plan{.dp = 4, .pp = 4, .zero = 1, .micro_batches = 16},
                             Plan{.dp = 2, .pp = 8, .zero = 1, .micro_batches = 32},
                             Plan{.dp = 4, .pp = 4, .zero = 1, .micro_batches = 16, .chunks = 2},
                             Plan{.pp = 16, .zero = 0, .micro_batches = 64}}) {
        const double formula = planner.cost().of(plan).seconds(),
                     simulated = planner.one(plan).seconds;
        EXPECT_NEAR(formula / simulated, 1, 0.03) << describe(plan);
    }
}

TEST(Planner, FindsTheFastestThatFits) {
    const PlanFor what = plan_for("llama-3-8b", 16, 64);
    Planner planner(what);
    const Planned all = planner.plan();
    ASSERT_GT(all.fit.size(), 100u);
    for (const Ranked& r : all.fit) {
        EXPECT_LE(r.memory.most, what.limit());
        EXPECT_EQ(r.plan.ranks(), what.gpus);
        EXPECT_EQ(r.plan.sequences(), what.sequences);
        EXPECT_GE(r.seconds, all.fit.front().seconds);
    }
    // Half the memory: fewer fit, and the best is no faster.
    PlanFor less = what;
    less.hardware.memory /= 2;
    const Planned fewer = Planner(less).plan();
    EXPECT_LT(fewer.fit.size(), all.fit.size());
    EXPECT_GE(fewer.fit.front().seconds, all.fit.front().seconds);
    // A model that is too large for ZeRO-1 alone is cut by layers or inside them.
    const Plan large = Planner(plan_for("llama-3-70b", 32, 64)).plan().fit.front().plan;
    EXPECT_GT(large.tp * large.pp * (large.zero == 3 ? 2 : 1), 1);
}

// README: over 100,000 layouts in under 10 s of one core. The bound leaves room for sanitizers.
TEST(Planner, PlansAHundredThousandLayoutsInSeconds) {
    Planner planner(plan_for("llama-3-70b", 30720, 30720, 8192));
    const std::clock_t begin = std::clock();  // of this process: others do not count
    const Planned all = planner.plan();
    EXPECT_LT(double(std::clock() - begin) / CLOCKS_PER_SEC, 120);
    EXPECT_GT(all.considered, 100'000);
    EXPECT_GT(all.fit.size(), 10'000u);
}

TEST(Planner, SlowerLinksMakeSlowerPlans) {
    PlanFor what = plan_for("llama-3-70b", 64, 128);
    const Plan plan{.dp = 4, .tp = 8, .pp = 2, .zero = 1, .micro_batches = 32};
    const double fast = Planner(what).one(plan).seconds;
    what.hardware.inside.bytes_per_second /= 4;
    const Ranked slow = Planner(what).one(plan);
    EXPECT_GT(slow.seconds, 1.1 * fast);
    EXPECT_NEAR(slow.seconds, slow.cost.seconds(), 1e-9);
}

// Here nothing that ZeRO-3 sends is waited for but one layer's gather and scatter, of 80. The rest
// slows the products by the share that the hardware says.
TEST(Planner, HiddenCommunicationSlowsComputing) {
    PlanFor what = plan_for("llama-3-70b", 64, 512, 8192);
    const Plan plan{.dp = 64, .zero = 3, .micro_batches = 8};
    const auto data = [&](double slows) {
        what.hardware.inside.collective_slows = what.hardware.between.collective_slows = slows;
        return Planner(what).one(plan).cost.data;
    };
    const double none = data(0), half = data(0.5), all = data(1);
    EXPECT_GT(half, 5 * none);
    EXPECT_NEAR(half - none, all - half, 1e-9 * all);
}

TEST(Planner, RuleOfThumbFits) {
    for (const auto& [model, gpus] :
         {std::pair("llama-3-8b", 8), std::pair("llama-3-8b", 64), std::pair("llama-3-70b", 256),
          std::pair("llama-3-405b", 2048)}) {
        const PlanFor what = plan_for(model, gpus, 1024);
        Planner planner(what);
        const RuleOfThumb rule = rule_of_thumb(planner);
        ASSERT_TRUE(rule.chosen) << model << " on " << gpus;
        EXPECT_LE(rule.chosen->memory.most, what.limit());
        EXPECT_EQ(rule.chosen->plan.ranks(), gpus);
        EXPECT_EQ(rule.chosen->plan.sequences(), what.sequences);
    }
}

}  // namespace
}  // namespace ultrascale
