// 01_data_parallel's demos, and gradients that travel in another dtype.
#include "compare_runs.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "01_data_parallel";

TEST(DataParallelDemos, CollectivesWithMaxAverageAndAPlainRing) {
    const Outcome demo = run_ranks(4, chapter, "--demo collectives");
    EXPECT_EQ(demo.exit_code, 0) << demo.out << demo.err;
    for (const char* part : {"all_reduce(x, max): every rank gets the largest",
                             "rank 0   [1 1 1 1 1]   [4 4 4 4 4]   ok",
                             "all_reduce(x, average): every rank gets the mean",
                             "rank 3   [4 4 4 4 4]   [2.5 2.5 2.5 2.5 2.5]   ok",
                             "hop 3: rank 2 sends 6 to rank 3, which adds 4: 10",
                             "hop 4: rank 3 sends 10 to rank 0, which has the sum of all",
                             "all results are as expected"})
        EXPECT_TRUE(contains(demo.out, part)) << part << "\n" << demo.out;
}

TEST(DataParallelDemos, PretendedHops) {
    EXPECT_TRUE(in_one_of_six_tries([] {
        TempDir dir;
        const Outcome demo = run_ranks(
            2, chapter,
            fmt::format("--demo latency --largest-mib 0.1 --hop-us 10 --hop-gbps 400 --json {}",
                        dir / "rows.jsonl"));
        EXPECT_EQ(demo.exit_code, 0) << demo.out << demo.err;
        // 2 * 511 hops of 10 us, and 2 * 511/512 * 64 MiB / 50 GB/s
        EXPECT_TRUE(contains(demo.out, "512    12.899 ms  |")) << demo.out;
        std::istringstream lines(slurp(dir / "rows.jsonl"));
        std::map<int64_t, double> largest_seconds;
        for (std::string line; std::getline(lines, line);) {
            const Json row = Json::parse(line);
            if (!row.contains("row") || row["row"]["bytes"] != 104448) continue;
            largest_seconds[row["row"]["ranks"].get<int64_t>()] =
                row["row"]["measured_ms"].get<double>();
        }
        EXPECT_EQ(largest_seconds.size(), 4u) << slurp(dir / "rows.jsonl");
        return largest_seconds[512] >
               5 * largest_seconds[8];  // 1022 hops against 14, with the same bytes
    }));
}

// On links of 20 ms a hop the tree wins below the crossing and the ring above it.
TEST(DataParallelDemos, ATreeBesideARing) {
    EXPECT_TRUE(in_one_of_six_tries([] {
        TempDir dir;
        const Outcome demo =
            run_ranks(4, chapter,
                      fmt::format("--demo tree --hop-us 20000 --hop-gbps 0.01 --json {}",
                                  dir / "rows.jsonl"));
        EXPECT_EQ(demo.exit_code, 0) << demo.out << demo.err;
        std::istringstream lines(slurp(dir / "rows.jsonl"));
        Json last;
        for (std::string line; std::getline(lines, line);) last = Json::parse(line);
        const Json sizes = last.at("summary").at("tree_crossing");
        // In hops' times, with one chunk: 6 + 1.5 s = 4 + 3 s.
        const double predicted = sizes.at("predicted_bytes").get<double>(),
                     measured = sizes.at("measured_bytes").get<double>();
        EXPECT_NEAR(predicted, 4.0 / 3 * 0.02 * 1.25e6, 100);
        return measured > predicted / 2 && measured < 3 * predicted;
    }));
}

TEST(DataParallelDemos, DataCentresFarApart) {
    const Outcome demo = run(chapter, "--demo planet");
    EXPECT_EQ(demo.exit_code, 0) << demo.out << demo.err;
    for (const char* part : {"light in the fibre takes 46 ms", "what Epoch AI plans"})
        EXPECT_TRUE(contains(demo.out, part)) << demo.out;
    EXPECT_EQ(run(chapter, "--demo planet --planet sites=1").exit_code, 2);
}

// Half of the bytes travel, and verify detects an error of bf16's size instead of fp32's.
TEST(DataParallelReduceDtype, HalvesTheBytesAndRoundsTheGradient) {
    const SmallModel model;
    const auto with = [&](const std::string& dtypes) {
        return train(
            2, chapter,
            fmt::format("--model {} --seq 40 --steps 6 --micro-batch 2 --bucket-mb 0.05 {}",
                        model.path(), dtypes));
    };
    const Outcome fp32 = with(""), bf16 = with("--reduce-dtype bf16"),
                  twice = with("--reduce-dtype bf16 --grad-accum 2 --no-sync off"),
                  mixed = with("--dtype bf16 --fp32-grads --reduce-dtype bf16"),
                  wide = with("--dtype bf16 --reduce-dtype fp32");
    for (const Outcome* run : {&fp32, &bf16, &twice, &mixed, &wide}) expect_verified(*run);
    const auto sent = [](const Outcome& run) {
        return run.summary.at("communication").at("all-reduce").at("tensor_bytes").get<double>();
    };
    constexpr double loss = 16;  // with the vote beside it
    EXPECT_DOUBLE_EQ(2 * (sent(bf16) - loss), sent(fp32) - loss);
    EXPECT_DOUBLE_EQ(sent(mixed), sent(bf16));
    EXPECT_DOUBLE_EQ(sent(wide), sent(fp32));
    const auto gradient = [](const Outcome& run) {
        return run.summary.at("verify").at("gradient").get<double>();
    };
    EXPECT_LT(gradient(fp32), 1e-5);
    EXPECT_GT(gradient(bf16), 1e-4);
    EXPECT_LT(gradient(bf16), 1e-2);
}

}  // namespace
}  // namespace ultrascale::test
