// What a step waits for, on pretended nodes, beside what --explain-layout says of hardware that was
// calibrated there. The links are so slow that a step hardly does anything else, whatever else the
// machine does.
#include <algorithm>
#include <cmath>

#include "run_program.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "09_5d_parallel";
const std::string fast = " --node-size 4 --inter-gbps 0.01",
                  slow = " --node-size 4 --inter-gbps 0.002";
constexpr int steps = 4;

double median_step(const Outcome& run) {
    std::vector<double> ms = run.of("step_ms");
    ms.erase(ms.begin());
    std::ranges::sort(ms);
    return ms[ms.size() / 2] / 1e3;
}

class LongPlannerWaits : public testing::Test {
protected:
    // Calibrated on these nodes, once.
    static std::string file(const std::string& nodes) {
        static const TempDir directory;
        const std::string path = directory / (&nodes == &slow ? "slow.json" : "fast.json");
        if (!std::filesystem::exists(path)) {
            const Outcome calibrated = run_ranks(8, chapter, "--calibrate " + path + nodes);
            EXPECT_EQ(calibrated.exit_code, 0) << calibrated.err;
        }
        return path;
    }
    // Expects that the waits of 8 ranks are within a quarter of those predicted: the median step,
    // without what is predicted to be computed, which is little.
    static void expect_waits(const std::string& layout, const std::string& forced = "",
                             const std::string& nodes = fast) {
        if (on_gpu) GTEST_SKIP() << "on GPUs 8 ranks need as many";
        const Outcome planned = train(chapter, fmt::format("{} --explain-layout --gpus 8 "
                                                           "--hardware {}",
                                                           layout, file(nodes)));
        ASSERT_EQ(planned.rows.size(), 1u);
        const Json& row = planned.rows[0];
        const double computed = row.at("compute_seconds").get<double>() +
                                row.at("optimizer_seconds").get<double>(),
                     predicted = row.at("seconds").get<double>() - computed;
        EXPECT_LT(computed, 0.7 * predicted) << layout << ": too little waits";
        double measured = 0;
        EXPECT_TRUE(in_one_of_six_tries([&] {
            measured = median_step(train(8, chapter,
                                         fmt::format("{} {} {} --no-verify --steps {}", layout,
                                                     forced, nodes, steps))) -
                       computed;
            return std::abs(predicted / measured - 1) < 0.25;
        })) << layout
            << ": predicted " << predicted << " s, measured " << measured;
    }
};

const std::string small = "--layers 1 --micro-batch 1 --seq ";

TEST_F(LongPlannerWaits, OfData) {
    expect_waits(small + "16 --dp 8");
    expect_waits(small + "16 --dp 2 --tp 4 --sequence-parallel");
    expect_waits(small + "16 --dp 8 --zero 1");
    expect_waits(small + "16 --dp 8 --zero 3 --grad-accum 2");
    expect_waits(small + "16 --dp 8 --zero 3 --keep-gathered on --grad-accum 2");
}

TEST_F(LongPlannerWaits, OfTensors) {
    expect_waits(small + "256 --tp 8 --sequence-parallel");
    expect_waits(small + "256 --tp 8");
    expect_waits(small + "256 --dp 4 --tp 2 --sequence-parallel --order dp,tp,ep,cp,pp");
}

TEST_F(LongPlannerWaits, OfContext) {
    // So many micro-batches that it is keys which are waited for, and not the sums of gradients.
    for (const char* variant :
         {"--grad-accum 2", "--grad-accum 2 --ring-backward restarted",
          "--grad-accum 2 --ring-backward kept", "--grad-accum 4 --variant all-gather",
          "--grad-accum 6 --variant ulysses", "--grad-accum 6 --variant usp --ulysses 4"})
        expect_waits(fmt::format("{}512 --cp 8 {}", small, variant));
    expect_waits(small + "512 --cp 2 --order dp,cp,tp,ep,pp --grad-accum 2");
}

// While a rank waits for a stage, others compute faster than in the calibration, in which all ranks
// of these few cores compute at once. So the links are slower still.
TEST_F(LongPlannerWaits, OfStages) {
    for (const char* layout : {"--layers 2 --micro-batch 1 --seq 64 --pp 2 --grad-accum 4",
                               "--layers 4 --micro-batch 1 --seq 64 --pp 4 --grad-accum 4 --zero 1",
                               "--layers 8 --micro-batch 1 --seq 64 --pp 8 --grad-accum 8"})
        expect_waits(layout, "", slow);
}

TEST_F(LongPlannerWaits, OfExperts) {
    const std::string experts =
        "--model nano-moe --layers 1 --micro-batch 1 --seq 64 --grad-accum 6 ";
    expect_waits(experts + "--ep 8", "--force-balance");
    expect_waits(experts + "--ep 8 --dispatch rank", "--force-balance");
    expect_waits(experts + "--ep 2 --order dp,ep,cp,tp,pp", "--force-balance");
}

}  // namespace
}  // namespace ultrascale::test
