// 01_data_parallel: every way to sum the gradients gives one device's results, with memory and
// communication as predicted.
#include <cmath>
#include <set>

#include "compare_runs.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "01_data_parallel";

constexpr int named_tensors = 3 * 9 + 3;  // the small model's

// Trains the small model on 2 sequences per rank and micro-batch.
Outcome train_small(int ranks, const std::string& arguments) {
    const SmallModel model;
    return train(ranks, chapter,
                 fmt::format("--model {} --seq 40 --steps 3 --lr 2e-3 --micro-batch 2 {}",
                             model.path(), arguments));
}

double calls(const Outcome& run, const char* kind) {
    return run.summary.at("communication").at(kind).at("calls").get<double>();
}

class DataParallelRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DataParallel, DataParallelRanks, testing::ValuesIn(rank_counts()),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(LongDataParallel, DataParallelRanks, testing::ValuesIn(more_rank_counts()),
                         testing::PrintToStringParamName());

TEST_P(DataParallelRanks, EveryTechniqueEqualsOneDevice) {
    const int n = GetParam();
    const Outcome naive = train_small(n, "--sync naive --verify");
    expect_verified(naive);
    EXPECT_EQ(calls(naive, "all-reduce"), named_tensors + 1);  // and the loss
    EXPECT_TRUE(contains(naive.out, fmt::format("batch   {} sequences x 40 tokens = {} a step: "
                                                "micro-batch 2 x 1 accumulated x {} ranks",
                                                2 * n, 80 * n, n)))
        << naive.out;
    EXPECT_EQ(naive.summary.at("configuration").at("global_batch"), 2 * n);

    const Outcome overlap = train_small(n, "--sync overlap"),
                  bucket = train_small(n, "--sync bucket --bucket-mb 0.05");
    for (const Outcome* run : {&overlap, &bucket}) {
        expect_verified(*run);
        expect_the_same(*run, naive);
    }
    EXPECT_EQ(calls(overlap, "all-reduce"), named_tensors + 1);
    EXPECT_GT(calls(bucket, "all-reduce"), 3);
    EXPECT_LT(calls(bucket, "all-reduce"), 10);
    for (const char* directions : {"one", "both"}) {
        const Outcome ring =
            train_small(n, fmt::format("--sync ring --ring-directions {}", directions));
        expect_verified(ring);
        expect_close(ring, naive);
        EXPECT_EQ(calls(ring, "send/recv"), 2 * (n - 1));
    }
    const Outcome tree = train_small(n, "--sync tree --tree-chunks 5");
    expect_verified(tree);
    expect_close(tree, naive);
    EXPECT_EQ(calls(tree, "send/recv"), n == 1 ? 0 : 5 + 2 * int(std::log2(n)) - 1);
}

// On GPUs nano's single bucket, of 6 MiB, is large enough for copy engines.
TEST(DataParallel, WithCopyEnginesAndWithout) {
    const auto with = [](const char* copy_engines) {
        const Outcome run = train(
            2, chapter,
            fmt::format("--seq 40 --steps 3 --micro-batch 2 --copy-engines {}", copy_engines));
        expect_verified(run);
        return run;
    };
    expect_close(with("on"), with("off"));
}

TEST(DataParallel, AccumulationSynchronisesOnceOrEachTime) {
    for (const char* sync : {"naive", "overlap", "bucket", "ring"}) {
        SCOPED_TRACE(sync);
        const auto with = [&](const char* no_sync) {
            const Outcome run =
                train_small(3, fmt::format("--grad-accum 3 --sync {} --no-sync {}", sync, no_sync));
            expect_verified(run);
            EXPECT_EQ(run.summary.at("configuration").at("global_batch"), 2 * 3 * 3);
            return run;
        };
        const Outcome on = with("on"), off = with("off");
        expect_close(on, off);
        const bool ring = std::string(sync) == "ring";
        const char* kind = ring ? "send/recv" : "all-reduce";
        const double loss = ring ? 0 : 1;
        EXPECT_EQ(calls(off, kind) - loss, 3 * (calls(on, kind) - loss));
    }
}

TEST(DataParallel, EqualsChapter00) {
    const SmallModel model;
    const Outcome single =
        train("00_single_gpu",
              fmt::format("--model {} --seq 40 --steps 3 --lr 2e-3 --micro-batch 12 --no-verify",
                          model.path()));
    for (const char* split : {"--micro-batch 4", "--micro-batch 2 --grad-accum 2",
                              "--micro-batch 1 --grad-accum 4 --no-sync off"})
        expect_close(train_small(3, fmt::format("--no-verify {}", split)), single);
}

TEST(DataParallel, OneRankAlone) {
    for (const char* sync : {"naive", "overlap", "bucket", "ring"})
        for (int ranks : {0, 1})
            expect_verified(train_small(ranks, fmt::format("--sync {} --grad-accum 2", sync)));
}

TEST(DataParallel, OtherPrecisionsRecomputationAndTiedWeights) {
    const SmallModel tied(true);
    for (const char* sync : {"overlap", "bucket --bucket-mb 0.01", "ring --ring-directions both"})
        for (const char* others :
             {"--dtype bf16", "--dtype bf16 --fp32-grads --recompute selective",
              "--recompute full:1 --clip 0.1"})
            expect_verified(
                train_small(2, fmt::format("--model {} --sync {} {}", tied.path(), sync, others)));
}

// --explain: a bucket's all-reduce is printed where it starts, between the backward passes of the
// layers.
TEST(DataParallel, ExplainShowsBucketsUnderTheBackward) {
    const Outcome run = train_small(2, "--no-verify --sync bucket --bucket-mb 0.05 --explain");
    const size_t backward = run.out.find("before backward of head"),
                 update = run.out.find("global gradient norm");
    ASSERT_TRUE(backward != std::string::npos && update != std::string::npos) << run.out;
    // the order of backward's lines: h, 2, 1, 0, e for its units, and B for a bucket
    std::vector<std::string> order;
    std::istringstream lines(run.out.substr(backward, update - backward));
    for (std::string line; std::getline(lines, line);) {
        if (contains(line, "all-reduce") && contains(line, "asynchronous")) order.push_back("B");
        if (const size_t at = line.find("after backward of "); at != std::string::npos)
            order.push_back(line.substr(at + 18, 8));
    }
    const auto index = [&](const std::string& what) {
        return std::ranges::find(order, what) - order.begin();
    };
    EXPECT_LT(index("head (mi"), index("layers.2"));
    EXPECT_LT(index("layers.2"), index("layers.1"));
    EXPECT_LT(index("layers.1"), index("layers.0"));
    EXPECT_LT(index("layers.0"), index("embeddin"));
    EXPECT_LT(index("B"), index("layers.2"))
        << run.out;  // the first bucket does not wait for the rest
    EXPECT_EQ(std::ranges::count(order, "B"), calls(run, "all-reduce") - 1);  // without the loss
    EXPECT_GE(std::count(order.begin() + index("head (mi"), order.begin() + index("layers.0"), "B"),
              3)
        << run.out;
}

TEST(DataParallel, TraceHasALaneForCommunication) {
    TempDir dir;
    train_small(2, fmt::format("--no-verify --sync bucket --bucket-mb 0.05 --trace {}",
                               dir / "trace.json"));
    const Json trace = Json::parse(slurp(dir / "trace.json"), nullptr, false);
    ASSERT_TRUE(trace.is_object() && trace.contains("traceEvents"));
    std::set<std::string> lanes;
    std::set<Json> communication_threads;
    int all_reduces = 0;
    for (const Json& event : trace["traceEvents"])
        if (event.at("ph") == "M" && event.at("name") == "thread_name") {
            lanes.insert(event.at("args").at("name").get<std::string>());
            if (event.at("args").at("name") == "communication")
                communication_threads.insert(event.at("tid"));
        }
    for (const Json& event : trace["traceEvents"])
        if (event.at("ph") == "X" && event.at("args").at("operation") == "all-reduce")
            all_reduces += int(communication_threads.count(event.at("tid")));
    for (const char* lane : {"compute", "communication", "phase"})
        EXPECT_TRUE(lanes.count(lane)) << lane;
    EXPECT_GE(all_reduces, 3 * 3);
}

}  // namespace
}  // namespace ultrascale::test
