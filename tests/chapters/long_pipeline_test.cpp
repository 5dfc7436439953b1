// All of 05_pipeline: every schedule on every number of ranks, with few, many and odd numbers of
// micro-batches, in the simulated time; and the input that it refuses.
#include "pipeline_runs.h"
#include "processes.h"
#include "refused.h"

namespace ultrascale::test::pipeline {
namespace {

const char* const others[] = {"",
                              "--recompute full",
                              "--dropout 0.1",
                              "--micro-batch 2 --document-token 10",
                              "--attention naive --recompute selective",
                              "--post-validation --clip 0.5",
                              "--attention naive --recompute full",
                              "--ignore-token 12"};

TEST(LongPipeline, EveryScheduleOnEveryNumberOfRanks) {
    for (const int p : {2, 3, 4, 8}) {
        const LayeredModel model(2 * p + 1), tied(2 * p + 1, true);
        size_t i = size_t(p);
        std::vector<int> counts = {1, p - 1, 2 * p, 2 * p + 3};
        if (p < 8) counts.insert(counts.end(), {p, p + 1});  // runs with 8 ranks take longest
        for (const std::string& schedule : schedules)
            for (const int m : counts) {
                if (m < 1 || !exists(schedule, p, m)) continue;
                expect_equal(
                    p, i % 2 == 0 ? model : tied,
                    fmt::format("--schedule {} --grad-accum {} {}", schedule, m, others[i % 8]));
                ++i;
            }
    }
}

TEST(LongPipeline, ThePlainLoopOnEveryNumberOfRanks) {
    for (const int p : {1, 2, 3, 4, 8}) {
        const LayeredModel model(2 * p + 1), tied(2 * p + 1, true);
        for (const int m : {1, p - 1, p, p + 1, 2 * p, 2 * p + 3})
            if (m >= 1)
                expect_equal(p, m % 2 == 0 ? model : tied,
                             fmt::format("--schedule plain --grad-accum {} {}", m, others[m % 5]));
    }
    expect_equal(8, LayeredModel(8, true), "--pp 4 --schedule plain --grad-accum 8");
}

TEST(LongPipeline, InterleavedByGroupsAndChunks) {
    const LayeredModel model(13), tied(13, true);
    for (const int v : {2, 3})
        for (const char* sizes :
             {"--grad-accum 4 --group 4", "--grad-accum 8 --group 8", "--grad-accum 12 --group 6"})
            expect_equal(4, v == 2 ? model : tied,
                         fmt::format("--schedule interleaved --chunks {} {}", v, sizes));
    expect_equal(4, tied, "--schedule breadth-first --chunks 3 --grad-accum 5");
}

TEST(LongPipeline, WithDataParallelism) {
    const LayeredModel model(8), tied(8, true);
    size_t i = 0;
    for (const std::string& schedule : schedules) {
        expect_equal(8, i % 2 == 0 ? model : tied,
                     fmt::format("--pp 4 --schedule {} --grad-accum 8 {}", schedule,
                                 i % 3 == 0 ? "--post-validation" : ""));
        ++i;
    }
    expect_equal(4, tied, "--pp 2 --schedule zbv --grad-accum 3 --node-size 2 --inter-gbps 1");
}

TEST(LongPipeline, InBf16) {
    const LayeredModel model(8);
    for (const char* schedule : {"1f1b", "zb-h2", "zbv", "dualpipe"})
        for (const char* grads : {"", "--fp32-grads"})
            expect_equal(
                2, model,
                fmt::format("--schedule {} --grad-accum 4 --dtype bf16 {}", schedule, grads));
}

// On two cores eight ranks compute too slowly to show a bubble, but they can pretend to compute. On
// an idle machine the times are within 3 % (MEASURED.md); here other tests need the cores, too.
TEST(LongPipeline, PretendedTimesAreAsSimulated) {
    for (const int p : {2, 8}) {
        const LayeredModel model(2 * p);
        for (const std::string& schedule : schedules) {
            if (schedule == "naive" && p == 8) continue;  // 13 seconds of idleness
            const std::string arguments = fmt::format(
                "{} --no-verify --steps 3 --grad-accum {} --schedule {} --pretend "
                "F=30,B=30,W=15,hop=2",
                model.arguments(), 2 * p, schedule);
            EXPECT_TRUE(in_one_of_six_tries([&] {
                const Json times = train(p, chapter, arguments).summary.at("bubbles");
                const double simulated = times.at("step_simulated"), measured = times.at("step");
                return measured > 0.99 * simulated && measured < 1.1 * simulated;
            })) << arguments;
        }
    }
}

// In 1F1B a hop costs 2 (p-1) / p of its time for every micro-batch. In ZB-H2 it does not, because
// the warm-up is twice as long.
TEST(LongPipeline, HopsCostWhatTheyShould) {
    const int p = 4, m = 16;
    const LayeredModel model(8);
    const auto step = [&](const char* schedule, int hop) {
        double fastest = 1e9;
        for (int i = 0; i < 2; ++i)
            fastest = std::min(
                fastest, train(p, chapter,
                               fmt::format("{} --no-verify --steps 2 --grad-accum {} --schedule {} "
                                           "--pretend F=10,B=10,W=10,hop={}",
                                           model.arguments(), m, schedule, hop))
                             .summary.at("bubbles")
                             .at("step")
                             .get<double>());
        return fastest * 1e3;
    };
    const double law = 2.0 * (p - 1) / p * m;
    EXPECT_TRUE(in_one_of_six_tries([&] {
        // The slope is the time per millisecond of a hop. Besides the loss for each micro-batch it
        // contains the hops of the warm-up and the end.
        const double slope = (step("1f1b", 9) - step("1f1b", 1)) / 8,
                     h2_slope = (step("zb-h2", 9) - step("zb-h2", 1)) / 8;
        return std::abs(slope - law) < 0.25 * law && h2_slope < 0.5 * law;
    }));
}

// If a step ends with a barrier, the bubble of the first ranks' head start comes back: ZB-H2 is
// then no faster than ZB-H1. Without the barrier it is faster by that bubble, (p-1) F.
TEST(LongPipeline, OnlyPostValidationKeepsWhatZeroBubbleH2Promises) {
    const int p = 4;
    const double F = 20;  // milliseconds, as B and W
    const LayeredModel model(8);
    const auto step = [&](const char* arguments) {
        const Json times =
            train(p, chapter,
                  fmt::format("{} --no-verify --clip 0 --steps 5 --grad-accum 8 --pretend "
                              "F={},B={},W={},hop=0 {}",
                              model.arguments(), F, F, F, arguments))
                .summary.at("bubbles");
        return times.at("step").get<double>() * 1e3;
    };
    EXPECT_TRUE(in_one_of_six_tries([&] {
        const double h1 = step("--schedule zb-h1"), h2 = step("--schedule zb-h2"),
                     without_barrier = step("--schedule zb-h2 --post-validation");
        return std::abs(h2 - h1) < F / 2 && std::abs(h2 - without_barrier - (p - 1) * F) < F / 2;
    }));
}

TEST(LongPipeline, TheOptimalScheduleTrains) {
    if (std::system("command -v cbc glpsol highs >/dev/null 2>&1") != 0)
        GTEST_SKIP() << "no solver is installed";
    const LayeredModel model(6);
    const Outcome run = expect_equal(
        3, model, "--schedule optimal --grad-accum 5 --solver-seconds 10 --in-flight 3");
    EXPECT_TRUE(contains(run.out, "optimal")) << run.out;
}

class PipelineBadInput : public testing::Test {
protected:
    void expect(int ranks, const std::string& arguments, const std::vector<std::string>& telling) {
        expect_ranks_refuse(ranks, chapter, "--steps 2 " + arguments, telling);
    }
    ProcessMark mark_;
};

TEST_F(PipelineBadInput, Options) {
    expect(2, "--pp 0", {"--pp", "0"});
    expect(2, "--pp 3", {"--pp 3", "2 ranks", "divide"});
    expect(2, "--schedule 2f2b", {"--schedule 2f2b", "1f1b", "zbv"});
    expect(2, "--chunks 1 --schedule interleaved", {"--chunks 1", "between 2 and"});
    expect(2, "--tp 2", {"--tp"});  // another chapter's
    for (const char* wrong : {"F=0", "F=x", "G=2", "F", "hop=-1", "F=1e9"})
        expect(2, fmt::format("--pretend {}", wrong), {"--pretend", "F=40,B=40,W=20,hop=2"});
    expect(2, "--post-validation --val-data README.md", {"--post-validation", "--val-data"});
    expect(2, "--post-validation --loss-chunk 8", {"--loss-chunk", "--post-validation"});
    expect(2, "--schedule zb-h1 --loss-chunk 8 --grad-accum 2", {"--loss-chunk 8", "zb-h1"});
}

TEST_F(PipelineBadInput, Splits) {
    expect(2, "--layers 1", {"2 stages", "1 layer"});
    expect(2, "--split 4,5", {"--split 4,5", "9 layers", "8"});
    expect(2, "--split 4,4,4", {"--split 4,4,4", "3 numbers", "2 stages"});
    expect(2, "--split 8,0", {"--split 8,0", "at least one"});
    for (const char* wrong : {"4,x", "4,,4", "-4,12", "4,4,", "evenly"})
        expect(2, fmt::format("--split {}", wrong), {"--split", "6,5,5"});
}

TEST_F(PipelineBadInput, MicroBatchesThatAScheduleCannotTake) {
    expect(2, "--schedule interleaved --grad-accum 3",
           {"interleaved", "3 micro-batches", "2 or 4"});
    expect(2, "--schedule interleaved --grad-accum 1",
           {"interleaved", "only 1 micro-batch;", "use 2"});
    expect(2, "--schedule interleaved --grad-accum 4 --group 8", {"--group 8", "4"});
    expect(3, "--schedule dualpipe --grad-accum 6", {"dualpipe", "3 ranks", "even"});
    expect(2, "--schedule dualpipe --grad-accum 5", {"dualpipe", "5", "use 6"});
    expect(2, "--schedule dualpipe --grad-accum 2", {"dualpipe", "at least 4"});
    expect(2, "--schedule dualpipev --grad-accum 3", {"dualpipev", "at least 4"});
}

// These are refused before a step is measured.
TEST_F(PipelineBadInput, OptimalSchedules) {
    const auto expect_at_once = [](const std::string& arguments, const std::string& telling) {
        const Outcome refused =
            run_ranks(2, "05_pipeline", "--schedule optimal --micro-batch 1 " + arguments, 60);
        EXPECT_EQ(refused.exit_code, 2);
        EXPECT_TRUE(contains(refused.err, telling)) << refused.err;
        EXPECT_EQ(std::ranges::count(refused.err, '\n'), 1) << refused.err;
        EXPECT_EQ(refused.out, "");
    };
    expect_at_once("--layers 2 --grad-accum 33", "33 micro-batches are more");
    expect_at_once("--layers 2 --grad-accum 4 --loss-chunk 8",
                   "--loss-chunk 8: --schedule optimal");
    expect_at_once("--layers 2 --grad-accum 4 --val-data /nowhere", "/nowhere");
    expect_at_once("--layers 2 --grad-accum 4 --split 1,2", "--split 1,2");
    const TempDir dir;
    train(2, "05_pipeline",
          fmt::format("--layers 2 --seq 16 --micro-batch 1 --steps 1 --grad-accum 2 --save {}",
                      dir / "saved"));
    expect_at_once(fmt::format("--grad-accum 4 --seq 8 --load {}", dir / "saved"), "--seq 8");
}

TEST_F(PipelineBadInput, ScheduleFiles) {
    TempDir dir;
    const auto with = [&](const std::string& text) {
        put(dir / "schedule", text);
        return fmt::format("--grad-accum 2 --schedule file:{} ", dir / "schedule");
    };
    const std::string good = "0: F0 F1 D0 D1\n1: F0 D0 F1 D1\n";
    expect(2, "--schedule file:/nowhere/at/all", {"/nowhere/at/all", "cannot be read"});
    expect(2, with("0: F0 X1\n1: F0\n"), {"schedule:1", "X1"});
    expect(2, with("0: F0 F1 D0 D1\n1: F0 D0 F1\n"), {"rank 1", "D1 is missing"});
    expect(2, with("0: F0 D0 F1 D1\n1: F0 F1 D0 D1\n"), {"hangs", "rank 0 waits at D0"});
    expect(2, with(good) + "--in-flight 1", {"rank 0", "2 micro-batches", "1 fit"});
    expect(2, with(good) + "--grad-accum 3", {"2 micro-batches", "--grad-accum 2"});
    expect(3, with(good), {"2 ranks", "not for 3"});
    expect(2, with("stages: 0 0' | 1 1'\n0: F0a D0a F1b D1b\n1: F0a D0a F1b D1b\n"),
           {"rank 0", "one other rank"});
}

}  // namespace
}  // namespace ultrascale::test::pipeline
