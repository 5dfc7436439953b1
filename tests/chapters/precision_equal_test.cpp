// 08_mixed_precision: every recipe trains, holds and sends what its formula says, equals the same
// recipe on one device, and resumes with the same bits; mistakes are found.
#include "compare_runs.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "08_mixed_precision";
const char* const sizes = "--layers 2 --micro-batch 2 --seq 64 --steps 6";

Outcome train_recipe(int ranks, const std::string& arguments, int exit_code = 0) {
    return train(ranks, chapter, fmt::format("{} --verify --recipe {}", sizes, arguments),
                 exit_code);
}
void expect_equal(int ranks, const std::string& arguments) {
    SCOPED_TRACE(fmt::format("{} ranks: {}", ranks, arguments));
    expect_verified(train_recipe(ranks, arguments));
}

TEST(Precision, EveryRecipeEqualsOneDevice) {
    expect_equal(2, "fp32");
    expect_equal(2, "fp16 --grad-accum 2");
    expect_equal(2, "bf16 --without master --stochastic-rounding");
    expect_equal(2, "bf16-fp32 --grad-accum 2");
    expect_equal(2, "te --head fp8 --grad-accum 2");
    expect_equal(2, "deepseek --keep-fp8 --grad-accum 2");
    expect_equal(2, "fp8-lm");
    expect_equal(1, "nanotron --recompute full");
    expect_equal(1, "deepseek --keep-fp8 --recompute full:1");
    expect_equal(2, "plain-fp8 --grad-accum 2");
    expect_equal(2, "mxfp8 --grad-accum 2");
    expect_equal(1, "mxfp8 --gradient-format e5m2 --without up --recompute full");
    expect_equal(2, "nvfp4 --grad-accum 2");
    // In a larger batch, numbers that round the other way change the gradient by less.
    expect_equal(
        1, "nvfp4 --without hadamard,stochastic,square,last-layers --micro-batch 8 --seq 128");
    expect_equal(1, "tensor --gradient-format e4m3 --smooth-swiglu --power-of-two-scales");
    expect_equal(1, "row --keep-fp8 --unfused --loss-chunk 50");
    expect_equal(3, "nanotron --head fp8 --loss-chunk 48 --sum-scaling pre");
}

// 00_single_gpu and this chapter compute the same steps in the same order.
TEST(Precision, PlainRecipesArePlainTraining) {
    const std::string short_run = fmt::format("{} --no-verify", sizes);
    for (const auto& [recipe, dtype] :
         {std::pair{"fp32", "fp32"}, {"bf16", "bf16"}, {"bf16-fp32", "bf16 --fp32-grads"}}) {
        const Outcome here = train(1, chapter, fmt::format("{} --recipe {}", short_run, recipe)),
                      plain =
                          train(1, "00_single_gpu", fmt::format("{} --dtype {}", short_run, dtype));
        EXPECT_EQ(here.of("loss"), plain.of("loss")) << recipe;
        EXPECT_EQ(here.of("grad_norm"), plain.of("grad_norm")) << recipe;
    }
}

TEST(Precision, ThePlainLinearTrainsAsRecipeTensor) {
    const Outcome plain = train_recipe(1, "plain-fp8"), general = train_recipe(1, "tensor");
    EXPECT_EQ(plain.of("loss"), general.of("loss"));
    EXPECT_EQ(plain.of("grad_norm"), general.of("grad_norm"));
}

// Random numbers are counted by the sample's number in the run, so two ranks draw one rank's.
TEST(Precision, RanksRoundGradientsToNvfp4AsOneDoes) {
    const std::string short_run = fmt::format("{} --no-verify --recipe nvfp4", sizes);
    const Outcome one = train(1, chapter, short_run + " --grad-accum 2"),
                  two = train(2, chapter, short_run),
                  nearest = train(1, chapter, short_run + " --grad-accum 2 --without stochastic");
    EXPECT_EQ(one.of("loss")[0], two.of("loss")[0]);
    // Gradients of two micro-batches are added in bf16, within a rank or between two.
    EXPECT_NEAR(one.of("grad_norm")[0], two.of("grad_norm")[0], 1e-4 * two.of("grad_norm")[0]);
    EXPECT_GT(std::abs(one.of("grad_norm")[0] / nearest.of("grad_norm")[0] - 1), 3e-4);
}

TEST(Precision, OverflowedStepsAreSkippedByAllRanks) {
    const Outcome run = train_recipe(2, "fp16 --loss-scale-start 16777216");
    const double skipped = run.summary["loss_scale"]["skipped"];
    EXPECT_GE(skipped, 1);
    EXPECT_LE(skipped, 5);
    EXPECT_EQ(run.summary["loss_scale"]["last"], 16777216 / std::exp2(skipped));
    EXPECT_TRUE(contains(run.out, "overflow: skipped"));
    // The first step's loss stays until one is not skipped.
    for (double loss : run.of("loss")) EXPECT_LT(loss, 6);
    expect_verified(run);
}

TEST(Precision, ResumedRunsContinueWithTheSameBits) {
    for (const char* recipe :
         {"fp16 --loss-scale-start 16777216 --loss-scale-window 2", "te", "fp8-lm", "deepseek",
          "nanotron", "nvfp4", "bf16 --without master --stochastic-rounding"}) {
        SCOPED_TRACE(recipe);
        const TempDir saved;
        const std::string common =
            fmt::format("--layers 2 --micro-batch 2 --seq 64 --no-verify --recipe {}", recipe);
        const Outcome whole = train(1, chapter, common + " --steps 6");
        train(1, chapter, fmt::format("{} --steps 3 --save {}", common, saved.path()));
        const Outcome rest =
            train(1, chapter, fmt::format("{} --steps 3 --load {}", common, saved.path()));
        const std::vector<double> all = whole.of("loss"), second = rest.of("loss");
        ASSERT_EQ(all.size(), 6u);
        EXPECT_EQ(std::vector<double>(all.begin() + 3, all.end()), second);
    }
}

TEST(Precision, MistakesAreFound) {
    for (const auto& [ranks, arguments] : {std::pair{1, "fp16 --trap unscale-twice"},
                                           {1, "fp16 --without accumulation --trap unscale-twice"},
                                           {1, "fp16 --trap clip-scaled"},
                                           {2, "fp16 --loss-scale-start 16777216 --trap one-steps"},
                                           {1, "tensor --trap neighbours-scale"},
                                           {1, "deepseek --trap neighbours-scale"},
                                           {1, "mxfp8 --trap neighbours-scale"},
                                           {1, "nvfp4 --trap hadamard-once"},
                                           {1, "deepseek --trap stale-weights"}}) {
        SCOPED_TRACE(arguments);
        const Outcome run = train_recipe(ranks, arguments, 1);
        EXPECT_EQ(run.summary["verify"]["result"], "missed");
    }
}

TEST(Precision, ComparesAllRecipes) {
    const Outcome compared =
        train(1, chapter, fmt::format("{} --compare --steps 2", "--layers 1 --micro-batch 1"));
    std::map<std::string, int64_t> bytes;
    for (const Json& row : compared.rows) {
        EXPECT_TRUE(row["as_predicted"]) << row;
        EXPECT_EQ(row["predicted_bytes"], row["held_bytes"]);
        bytes[row["recipe"]] = row["bytes_per_parameter"];
    }
    const std::map<std::string, int64_t> want{
        {"fp32", 16},      {"fp16", 18},     {"bf16", 16},     {"bf16-fp32", 18}, {"te", 16},
        {"fp8-lm", 9},     {"deepseek", 15}, {"nanotron", 10}, {"tensor", 16},    {"row", 16},
        {"plain-fp8", 16}, {"mxfp8", 16},    {"nvfp4", 16}};
    EXPECT_EQ(bytes, want);
}

TEST(Precision, DemosShowWhatTheySay) {
    for (const char* demo :
         {"formats", "rounding", "scales", "accumulator", "swiglu", "all-reduce", "blocks"}) {
        const Outcome outcome = run(chapter, fmt::format("--demo {}", demo));
        EXPECT_EQ(outcome.exit_code, 0) << demo << outcome.out << outcome.err;
        EXPECT_FALSE(contains(outcome.out, "WRONG")) << outcome.out;
    }
    const Outcome tenth = run(chapter, "--demo formats --show 0.3");
    EXPECT_TRUE(contains(tenth.out, "0 0101 010"));  // 0.3125 in e4m3
}

}  // namespace
}  // namespace ultrascale::test
