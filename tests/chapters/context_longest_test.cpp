// Chapter 04's longest sequence: a run may use it, and longer ones are refused.
#include "refused.h"

namespace ultrascale::test {
namespace {

const std::string chapter = "04_context_parallel";

TEST(LongestSequence, WhatIsTooLongIsRefused) {
    const std::string nano = "--steps 2 --seq 64 --no-verify --device-memory ";
    expect_ranks_refuse(2, chapter, nano + "0.03",
                        {"out of memory: predicted parameters 6.26 MiB", "activations 14.3 MiB",
                         "communication buffers 256.0 KiB", "30.7 MiB",
                         "these options would: --recompute full, --micro-batch 3 or --seq 24; ",
                         "more ranks that share a sequence would: --cp 8\n"});
    expect_ranks_refuse(2, chapter, nano + "0.02",
                        {"alone do not fit", "splits none of them", "--layers"});
    // These sizes would not fit anywhere, so they are refused before anything is allocated.
    expect_ranks_refuse(2, chapter, "--model llama-3-405b --seq 1024", {"alone do not fit"});
    expect_ranks_refuse(4, chapter, "--micro-batch 4000000", {"out of memory", "--micro-batch "});
}

TEST(LongestSequence, ThatIsReportedTrains) {
    for (const char* way : {"", "--variant plain", "--variant all-gather", "--variant ulysses",
                            "--bidirectional on"}) {
        SCOPED_TRACE(way);
        const std::string options = fmt::format(
            "--steps 1 --micro-batch 1 --no-verify --device-memory 0.04 --report full {} --seq ",
            way);
        const auto longest = [](const Outcome& outcome) {
            return outcome.summary.at("fits").at("longest_sequence").get<int64_t>();
        };
        const int64_t seq = longest(train(2, chapter, options + "16"));
        EXPECT_GT(seq, 100);
        if (!on_gpu) {  // on GPUs workspace comes on top
            EXPECT_EQ(longest(train(2, chapter, options + std::to_string(seq))), seq);
        }
        expect_ranks_refuse(2, chapter, options + std::to_string(seq + 4),
                            {"out of memory", fmt::format("--seq {}", seq)});
    }
}

// The estimate has the same table as the run, and each figure is what a run with these options
// reports.
TEST(LongestSequence, OfAllNumbersOfRanks) {
    const std::string options = "--micro-batch 1 --device-memory 0.04 --seq 16 --variant ulysses";
    const Outcome estimate = train(2, chapter, options + " --estimate"),
                  run = train(2, chapter, options + " --no-verify --steps 1 --report full");
    std::vector<Json> rows;
    for (const Json& row : estimate.rows)
        if (row.at("table") == "longest") rows.push_back(row);
    EXPECT_EQ(rows, run.rows);
    ASSERT_EQ(rows.size(), 8u);  // 1, 2, 4 and 8 ranks; the model has 8 heads
    EXPECT_EQ(rows[2].at("cp"), 2);
    EXPECT_EQ(rows[2].at("longest_sequence"), estimate.summary.at("fits").at("longest_sequence"));
    EXPECT_EQ(rows[3].at("longest_sequence"),
              train(2, chapter, options + " --estimate --recompute full")
                  .summary.at("fits")
                  .at("longest_sequence"));
    for (const Outcome* outcome : {&estimate, &run})
        EXPECT_TRUE(contains(outcome->out, fmt::format("--cp {:<15} {:>21}", 64, "-")))
            << outcome->out;
}

// The layers' inputs and the rest add up to the prediction.
TEST(LongestSequence, TableOfInputs) {
    const Outcome outcome =
        train(2, chapter, "--estimate --recompute full --micro-batch 1 --seq 512");
    int found = 0;
    for (const Json& row : outcome.rows) {
        if (row.at("table") != "inputs" || row.at("seq") != 512 || row.at("cp") != 2) continue;
        ++found;
        EXPECT_EQ(row.at("input_bytes"), 8 * 512 / 2 * 128 * 4);  // L s h in fp32
        EXPECT_EQ(row.at("total_bytes"), outcome.summary["memory"]["peak"]["predicted"]);
        EXPECT_EQ(row.at("fits"), true);
    }
    EXPECT_EQ(found, 1);
}

}  // namespace
}  // namespace ultrascale::test
