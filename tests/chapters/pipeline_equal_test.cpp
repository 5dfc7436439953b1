// 05_pipeline: every schedule gives one device's results, with memory and messages as predicted.
#include "pipeline_runs.h"

namespace ultrascale::test::pipeline {
namespace {

// Each schedule gets different options, so that together they cover all of these.
const char* const others[] = {"--recompute full", "--dropout 0.1", "--micro-batch 2",
                              "--attention naive --recompute selective", "--document-token 10"};

TEST(Pipeline, EveryScheduleEqualsOneDevice) {
    const LayeredModel model(8), tied(8, true);
    size_t i = 0;
    for (const std::string& schedule : schedules) {
        const std::string arguments =
            fmt::format("--schedule {} --grad-accum 8 {}", schedule, others[i % 5]);
        expect_equal(4, i % 2 == 0 ? model : tied, arguments);
        ++i;
    }
}

TEST(Pipeline, ThePlainLoopEqualsOneDevice) {
    const LayeredModel model(6), tied(6, true);
    expect_equal(4, tied, "--schedule plain --grad-accum 6 --dropout 0.1 --split 2,2,1,1");
    expect_equal(3, model, "--schedule plain --grad-accum 1 --recompute full");
    expect_equal(4, model, "--pp 2 --schedule plain --grad-accum 3 --loss-chunk 7");
}

TEST(Pipeline, WithFewOrOddMicroBatchesAndDataParallelism) {
    const LayeredModel model(6), tied(6, true);
    expect_equal(3, tied, "--schedule zb-h2 --grad-accum 1");
    expect_equal(3, model, "--schedule zbv --grad-accum 5");
    expect_equal(2, tied, "--schedule 1f1b --grad-accum 3 --loss-chunk 7 --split 4,2");
    expect_equal(4, tied, "--pp 2 --schedule zb-h1 --grad-accum 3 --recompute full");
    expect_equal(4, model, "--pp 2 --schedule dualpipe --grad-accum 4");
}

// The first layers of the model are those of the first stages, which hold the most micro-batches.
TEST(Pipeline, WithRecomputationByLayer) {
    const LayeredModel model(6);
    expect_equal(2, model, "--schedule 1f1b --grad-accum 4 --recompute full:4");
    expect_equal(2, model, "--schedule zb-h1 --grad-accum 4 --recompute full:4");
    expect_equal(3, model,
                 "--schedule zbv --grad-accum 6 --attention naive --recompute full:2,selective:2");
}

// Schedules that add a weight's gradients in the same order give the same bits. All of these add
// them in the order of the micro-batches (AFAB, too: a rank does its backwards in that order).
TEST(Pipeline, TheSameOrderOfSumsGivesTheSameBits) {
    const LayeredModel model(8);
    const auto with = [&](int ranks, const std::string& schedule) {
        return train(ranks, chapter,
                     model.arguments() + "--steps 3 --no-verify --grad-accum 4 " + schedule);
    };
    const Outcome single =
        train("00_single_gpu", model.arguments() + "--steps 3 --no-verify --grad-accum 4");
    const Outcome first = with(2, "--schedule 1f1b");
    if (!on_gpu) {  // there each rank chooses the fastest algorithms for its products
        EXPECT_EQ(first.of("loss"), single.of("loss"));
    }
    expect_close(first, single);  // the norm is added by rank
    for (const char* other : {"plain", "afab", "zb-h1", "zb-h2"})
        expect_the_same(with(2, fmt::format("--schedule {}", other)), first);
}

// A step that goes back, because its norm had to be clipped, ends with the bits of a step that
// waited; so does a step that does not clip.
TEST(Pipeline, PostValidationIsTheSameTraining) {
    const LayeredModel model(8);
    for (const auto& [schedule, clip] : {std::pair{"zb-h2", 0.2}, {"zbv", 1.5}, {"1f1b", 100.0}}) {
        const std::string arguments =
            fmt::format("{} --steps 5 --grad-accum 5 --schedule {} --clip {}", model.arguments(),
                        schedule, clip);
        SCOPED_TRACE(arguments);
        TempDir waited, went_on;
        const Outcome one = train(2, chapter, arguments + " --save " + waited.path());
        const Outcome other =
            train(2, chapter, arguments + " --post-validation --verify --save " + went_on.path());
        expect_verified(other);
        expect_peak(other);
        expect_same_bits(one, other);
        expect_same_checkpoints(waited.path(), went_on.path());
        const std::vector<double> norms = one.of("grad_norm");
        EXPECT_EQ(other.summary.at("post_validation").at("repeated").get<int>(),
                  std::ranges::count_if(norms, [&](double norm) { return norm > clip; }));
    }
}

// The executor takes the time that the simulator predicts: here within 6 %, as other tests run at
// the same time and delay sleeping ranks.
TEST(Pipeline, PretendedTimesAreAsSimulated) {
    if (on_gpu) GTEST_SKIP() << "GPUs show their bubbles";
    const LayeredModel model(8);
    const std::string arguments = fmt::format(
        "{} --no-verify --steps 4 --grad-accum 4 --schedule zbv --pretend F=40,B=40,W=20,hop=2",
        model.arguments());
    EXPECT_TRUE(in_one_of_six_tries([&] {
        const Json times = train(2, chapter, arguments).summary.at("bubbles");
        const double simulated = times.at("step_simulated"), measured = times.at("step");
        return measured > 0.99 * simulated && measured < 1.06 * simulated;
    }));
}

TEST(Pipeline, ComparesAllSchedules) {
    const LayeredModel model(8);
    const Outcome all = train(2, chapter, model.arguments() + "--grad-accum 4 --steps 3 --compare");
    EXPECT_EQ(all.rows.size(), schedules.size() + 1);  // and the plain loop
    for (const Json& row : all.rows) EXPECT_EQ(row.at("as_predicted"), true) << row;
    EXPECT_TRUE(contains(all.out, "losses: at most 0 apart")) << all.out;
    const Outcome odd = train(2, chapter, model.arguments() + "--grad-accum 3 --steps 3 --compare");
    EXPECT_TRUE(contains(odd.out, "without dualpipe:")) << odd.out;
}

TEST(Pipeline, RunsASchedulesFile) {
    const LayeredModel model(4);
    TempDir dir;
    put(dir / "mine",
        "# as 1F1B, but with the last weights' gradients late\n"
        "0: F0 F1 B0 F2 B1 W0 B2 W1 W2\n"
        "1: F0 B0 F1 B1 W0 F2 B2 W1 W2\n");
    expect_equal(2, model, fmt::format("--grad-accum 3 --schedule file:{}", dir / "mine"));
}

}  // namespace
}  // namespace ultrascale::test::pipeline
