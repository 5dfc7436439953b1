// 09_5d_parallel's planner, as a user sees it: ranks that are only imagined hold and call what is
// predicted.
#include <algorithm>

#include "compare_runs.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "09_5d_parallel";

TEST(PlannerModes, ARehearsedRankHoldsWhatIsPredicted) {
    for (const char* layout :
         {"17/6144 --tp 8 --sequence-parallel --cp 2 --pp 8 --zero 1 --micro-batch 1 --grad-accum "
          "8",
          "9/16 --model nano-moe --tp 2 --sequence-parallel --ep 2 --pp 2 --zero 1 --micro-batch 1 "
          "--grad-accum 4",
          "5/64 --zero 3 --micro-batch 2 --grad-accum 2 --recompute full --node-size 8 "
          "--inter-gbps 4000"}) {
        SCOPED_TRACE(layout);
        const Outcome rehearsed = train(chapter, fmt::format("--rehearse {} --steps 2", layout));
        expect_as_predicted(rehearsed);
        EXPECT_FALSE(contains(rehearsed.out, "simulated")) << rehearsed.out;  // nodes, of one rank
    }
}

TEST(PlannerModes, EstimateOfImaginedRanksEqualsThatOfRealOnes) {
    const std::string layout =
        "--estimate --tp 2 --sequence-parallel --pp 2 --zero 3 --micro-batch 1 --grad-accum 4";
    const Outcome real = train(8, chapter, layout), imagined = train(chapter, layout + " --gpus 8");
    int64_t most = 0;
    for (const Json& row : imagined.rows)
        if (row.at("table") == "pipeline_ranks")
            most = std::max(most, row.at("total").get<int64_t>());
    EXPECT_EQ(most, real.summary.at("memory").at("peak").at("predicted").get<int64_t>());
}

// What --plan compares layouts by is what runs hold. (What is measured includes the workspace,
// which no formula predicts; a GPU's kernels need more of it than 2 % of so small a model.)
TEST(PlannerModes, MemoryIsThatOfRuns) {
    for (const char* layout :
         {"--zero 2 --micro-batch 4 --recompute full", "--zero 3 --micro-batch 1 --grad-accum 4",
          "--pp 2 --micro-batch 1 --grad-accum 4"}) {
        SCOPED_TRACE(layout);
        const Outcome measured = train(2, chapter, fmt::format("--steps 2 --no-verify {}", layout)),
                      planned = train(chapter, fmt::format("--explain-layout --gpus 2 {}", layout));
        ASSERT_EQ(planned.rows.size(), 1u);
        const Json& memory = measured.summary.at("memory");
        const double plan = planned.rows[0].at("memory_bytes"),
                     bytes = memory.at("peak").at("measured"),
                     workspace = on_gpu ? memory.at("workspace").at("measured").get<double>() : 0;
        EXPECT_LE(plan, 1.02 * bytes);
        EXPECT_GE(plan, 0.98 * (bytes - workspace));
    }
}

TEST(PlannerModes, WhatWasCalibratedIsRead) {
    const TempDir directory;
    const std::string file = directory / "this.json";
    Json hardware;
    double link = 0;
    EXPECT_TRUE(in_one_of_six_tries([&] {
        const Outcome calibrated =
            run_ranks(2, chapter, {"--calibrate", file, "--node-size", "1", "--inter-gbps", "0.2"});
        EXPECT_EQ(calibrated.exit_code, 0) << calibrated.err;
        hardware = Json::parse(slurp(file));
        link = hardware.at("between").at("bytes_per_second");
        return link > 0.15e9 / 8 && link < 0.21e9 / 8;  // a little of the time is latency
    })) << link;
    EXPECT_GT(hardware.at("process_bytes").get<double>(), 1e6);
    const Outcome planned = train(chapter, "--explain-layout --gpus 2 --dp 2 --hardware " + file);
    ASSERT_EQ(planned.rows.size(), 1u);
    // 6.6 MB of gradients, in one bucket: nothing hides them. Each rank sends half of them to be
    // added up, and half of the sums; a noisy machine may measure the one faster or the other.
    const double adding = hardware.at("between").at("reduced_bytes_per_second");
    EXPECT_GT(planned.rows[0].at("data_seconds").get<double>(), 3.25e6 / adding + 3.25e6 / link);
}

// A script can tell a model for which there is no layout from wrong input.
TEST(PlannerModes, NoPlanHasAnExitCode) {
    for (const auto& [args, why] :
         {std::pair{"--plan --gpus 2 --model llama-3-70b", "none of "},
          {"--plan --gpus 13 --batch-tokens 1K", "no layout of 13 GPUs: "},
          {"--plan --gpus 2 --dp 2 --zero 2 --dtype bf16 --reduce-dtype bf16",
           "a run would refuse all "}}) {
        const Outcome none = run(chapter, args);
        EXPECT_EQ(none.exit_code, 6) << none.err;
        EXPECT_TRUE(none.err.starts_with(fmt::format("error: --plan: {}", why))) << none.err;
        EXPECT_EQ(none.err.find('\n'), none.err.size() - 1) << none.err;
        EXPECT_TRUE(contains(none.out, why)) << none.out;
    }
}

// What can be refused is refused before seconds of measuring.
TEST(PlannerModes, CalibratesOnlyForAFileThatCanBeWritten) {
    const Outcome refused = run_ranks(2, chapter, "--calibrate /nonexistent/this.json", 60);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_EQ(refused.err,
              "error: /nonexistent/this.json: cannot be written: No such file or directory\n");
    EXPECT_EQ(refused.out, "");
}

TEST(PlannerModes, BadLayoutsAreRefused) {
    for (const char* args :
         {"--rehearse 8/8", "--rehearse x", "--plan --hardware h1000", "--gpus 8",
          "--plan --batch-tokens many", "--explain-layout --gpus 8 --tp 3"}) {
        const Outcome refused = run(chapter, args);
        EXPECT_EQ(refused.exit_code, 2) << args << "\n" << refused.out;
        EXPECT_EQ(std::ranges::count(refused.err, '\n'), 1) << refused.err;
    }
}

}  // namespace
}  // namespace ultrascale::test
