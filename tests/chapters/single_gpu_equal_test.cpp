// Options that must not change what 00_single_gpu computes: recomputation, the split of the batch,
// a save in between.
#include "compare_runs.h"

namespace ultrascale::test {
namespace {

const std::string base = "--layers 2 --seq 40 --steps 4 --no-verify --lr 2e-3 ";

void expect_same_files(const std::string& a, const std::string& b) {
    for (const char* file :
         {"config.json", "model.safetensors", "optimizer.safetensors", "trainer_state.json"}) {
        EXPECT_GT(slurp(a + "/" + file).size(), 10u) << file;
        EXPECT_TRUE(slurp(a + "/" + file) == slurp(b + "/" + file)) << file;
    }
}

Outcome train_small(const std::string& arguments) {
    return train("00_single_gpu", base + arguments);
}

TEST(SingleGpuEqual, RecomputationGivesTheSameBits) {
    TempDir dir;
    for (const char* others :
         {"--attention flash", "--attention naive --loss-chunk 19",
          "--attention naive --dtype bf16", "--attention flash --dtype bf16 --fp32-grads"}) {
        SCOPED_TRACE(others);
        const auto with = [&](const char* recompute) {
            return train_small(
                fmt::format("{} --micro-batch 2 --grad-accum 2 --recompute {} --save {}", others,
                            recompute, dir / recompute));
        };
        const Outcome none = with("none");
        for (const char* recompute : {"selective", "full", "full:1"}) {
            SCOPED_TRACE(recompute);
            expect_same_bits(with(recompute), none);
            expect_same_files(dir / recompute, dir / "none");
        }
    }
}

TEST(SingleGpuEqual, TheSameCommandGivesTheSameBits) {
    expect_same_bits(train_small("--shuffle --seed 3"), train_small("--shuffle --seed 3"));
    EXPECT_GT(
        largest_difference(train_small("--seed 3").of("loss"), train_small("--seed 4").of("loss")),
        1e-4);
}

// A split changes the order of sums. Adam divides by a gradient's size, so it turns the rounding of
// the smallest gradients into steps as large as any. On a GPU every shape of a matrix product may
// have its own kernel, and so its own order.
const double loss_bound = on_gpu ? 1e-5 : 1e-6;

TEST(SingleGpuEqual, AnySplitOfTheBatch) {
    for (const char* others : {"", "--ignore-token 101", "--document-token 10 --shuffle"}) {
        const Outcome whole = train_small(fmt::format("--micro-batch 8 {}", others));
        for (const char* split :
             {"--micro-batch 4 --grad-accum 2", "--micro-batch 2 --grad-accum 4",
              "--micro-batch 1 --grad-accum 8"}) {
            SCOPED_TRACE(fmt::format("{} {}", others, split));
            const Outcome parts = train_small(fmt::format("{} {}", split, others));
            EXPECT_LE(largest_difference(parts.of("loss"), whole.of("loss")), loss_bound);
            EXPECT_LE(largest_difference(parts.of("grad_norm"), whole.of("grad_norm")), 1e-5);
        }
    }
}

TEST(SingleGpuEqual, IgnoredAndMaskedTokensMatter) {
    const std::vector<double> plain = train_small("").of("loss");
    EXPECT_GT(largest_difference(train_small("--ignore-token 101").of("loss"), plain), 1e-3);
    EXPECT_GT(largest_difference(train_small("--document-token 10").of("loss"), plain), 1e-3);
}

TEST(SingleGpuVerify, PassesForEveryWayToCompute) {
    for (const char* arguments :
         {"", "--micro-batch 2 --grad-accum 4 --recompute full --loss-chunk 33 --ignore-token 32",
          "--document-token 10 --shuffle --lr-schedule cosine",
          "--batch-ramp 8:1,16:2,24 --warmup 2",
          "--dtype bf16 --recompute selective --attention naive", "--dtype bf16 --fp32-grads"}) {
        const Outcome run = train(
            "00_single_gpu", fmt::format("--layers 2 --seq 40 --steps 4 --verify {}", arguments));
        EXPECT_EQ(run.summary.at("verify").at("result"), "ok") << arguments;
        EXPECT_FALSE(contains(run.out, "MISSED")) << arguments;
    }
}

TEST(SingleGpuVerify, ShowsByHowMuchANaiveMeanIsWrong) {
    const std::string split = "--layers 2 --seq 40 --steps 3 --micro-batch 1 --grad-accum 8 ";
    const Outcome right = train("00_single_gpu", split + "--ignore-token 101"),
                  wrong = train("00_single_gpu", split + "--ignore-token 101 --naive-mean"),
                  harmless = train("00_single_gpu", split + "--naive-mean");
    EXPECT_LE(right.summary.at("verify").at("gradient").get<double>(), 1e-5);
    EXPECT_LE(harmless.summary.at("verify").at("gradient").get<double>(),
              1e-5);  // every micro-batch counts as many targets
    EXPECT_GE(wrong.summary.at("verify").at("gradient").get<double>(), 1e-3);
    EXPECT_GE(wrong.summary.at("verify").at("loss").get<double>(), 1e-4);
    // The error is reported, but the exit code is 0, as train() has checked.
    EXPECT_EQ(wrong.summary.at("verify").at("result"), "not meant to be equal");
    EXPECT_TRUE(contains(wrong.out, "MISSED"));
}

// Trains 6 steps in one run, and as 3 + 3 with a save between.
class Resume : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    SingleGpu, Resume,
    testing::Values("", "--dtype bf16", "--dtype bf16 --fp32-grads --shuffle",
                    "--shuffle --lr-schedule cosine --lr-steps 6 --warmup 2",
                    "--micro-batch 4 --batch-ramp 4:2,8:2,12 --recompute full"));

TEST_P(Resume, ContinuesBitwise) {
    TempDir dir;
    const auto with = [&](int steps, const std::string& others) {
        return train("00_single_gpu",
                     fmt::format("--layers 2 --seq 40 --no-verify --steps {} {} {}", steps,
                                 GetParam(), others));
    };
    const Outcome straight = with(6, "--save " + dir / "straight");
    Outcome halves = with(3, "--save " + dir / "half");
    const Outcome rest = with(3, fmt::format("--load {} --save {}", dir / "half", dir / "again"));
    halves.steps.insert(halves.steps.end(), rest.steps.begin(), rest.steps.end());
    EXPECT_EQ(halves.of("step"), (std::vector<double>{1, 2, 3, 4, 5, 6}));
    expect_same_bits(halves, straight);
    expect_same_files(dir / "again", dir / "straight");
    // The run may save into the directory from which it was loaded.
    with(3, fmt::format("--load {0} --save {0}", dir / "half"));
    expect_same_files(dir / "half", dir / "straight");
}

TEST(SingleGpuResume, VerifiesFromWhereItStands) {
    TempDir dir;
    train("00_single_gpu", "--layers 2 --seq 40 --no-verify --steps 2 --save " + dir / "saved");
    const Outcome run = train(
        "00_single_gpu",
        fmt::format("--steps 3 --recompute full --no-verify --verify --load {}", dir / "saved"));
    EXPECT_EQ(run.summary.at("verify").at("result"), "ok");
    EXPECT_EQ(run.of("step"), (std::vector<double>{3, 4, 5}));
    EXPECT_EQ(run.summary.at("configuration").at("seq"), 40);  // unchanged
    EXPECT_EQ(run.summary.at("configuration").at("model"), dir / "saved");
}

TEST(SingleGpuResume, WeightsAloneStartAnew) {
    TempDir dir;
    const Outcome first = train_small("--save " + dir / "saved");
    std::filesystem::remove(dir / "saved/trainer_state.json");
    std::filesystem::remove(dir / "saved/optimizer.safetensors");
    const Outcome again = train(
        "00_single_gpu", fmt::format("--load {} --seq 40 --steps 1 --no-verify", dir / "saved"));
    EXPECT_EQ(again.of("step"), std::vector<double>{1});
    EXPECT_LT(again.of("loss")[0],
              first.of("loss")[0] - 0.1);  // the same sample, but the weights have seen it
}

TEST(SingleGpuResume, WhatWasLoadedIsSavedUnchanged) {
    TempDir dir;
    train_small("--save " + dir / "saved");
    train("00_single_gpu",
          fmt::format("--load {} --seq 40 --steps 0 --save {}", dir / "saved", dir / "copy"));
    expect_same_files(dir / "copy", dir / "saved");
}

// The moment at which gradients are allocated changes no bit of them. Activations and gradients
// together are as predicted, also for tied embeddings, and for a loss in chunks, whose gradients
// begin in forward.
TEST(SingleGpuFreshGradients, ChangeNoBitAndLowerThePeak) {
    for (const char* others : {"", "--dtype bf16 --fp32-grads --loss-chunk 50 --recompute full"}) {
        SCOPED_TRACE(others);
        const auto with = [&](const char* fresh) {
            return train("00_single_gpu",
                         fmt::format("{} --seq 40 --micro-batch 1 --steps 3 --no-verify {} {}",
                                     load("tied_head_dim"), others, fresh));
        };
        const Outcome fresh = with("--fresh-grads");
        expect_same_bits(fresh, with(""));
        const Json& peak = fresh.summary.at("fresh_gradients");
        EXPECT_EQ(peak.at("measured"), peak.at("predicted"));
        EXPECT_LT(peak.at("measured").get<double>(), peak.at("otherwise").get<double>());
        EXPECT_EQ(fresh.summary.at("memory").at("gradients").at("measured"), 0);
    }
    // With several micro-batches it saves no memory.
    const Outcome two = train("00_single_gpu",
                              "--layers 2 --seq 40 --micro-batch 1 --grad-accum 2 --steps 3 "
                              "--verify --fresh-grads");
    EXPECT_EQ(two.summary.at("verify").at("result"), "ok");
    const Json& peak = two.summary.at("fresh_gradients");
    EXPECT_EQ(peak.at("measured"), peak.at("otherwise"));
}

// The first stage equals a run with short sequences, and a run may be resumed in any stage.
TEST(SingleGpuSeqRamp, CutsTheSamplesOfTheFirstSteps) {
    TempDir dir;
    const auto with = [&](const std::string& arguments) {
        return train("00_single_gpu", "--layers 2 --lr 2e-3 " + arguments);
    };
    const std::string ramp = "--micro-batch 2 --seq-ramp 10:50%,20:1,40 --verify ";
    const Outcome run = with(ramp + "--steps 6 --save " + dir / "straight");
    EXPECT_EQ(run.summary.at("verify").at("result"), "ok");
    EXPECT_FALSE(contains(run.out, "MIS")) << run.out;
    for (const char* note : {"seq 10\n", "seq 20\n", "seq 40\n"})
        EXPECT_TRUE(contains(run.out, note)) << run.out;
    const std::vector<double> shorter =
        with("--micro-batch 8 --seq 10 --steps 3 --no-verify").of("loss");
    for (size_t s = 0; s < 3; ++s) EXPECT_EQ(run.of("loss")[s], shorter[s]);
    with("--micro-batch 2 --seq-ramp 10:3,20:1,40 --no-verify --steps 2 --save " + dir / "half");
    const Outcome rest =
        train("00_single_gpu", fmt::format("--lr 2e-3 --micro-batch 2 --seq-ramp 10:50%,20:1,40 "
                                           "--no-verify --steps 4 --load {} --save {}",
                                           dir / "half", dir / "again"));
    EXPECT_EQ(rest.of("loss")[3], run.of("loss")[5]);
    expect_same_files(dir / "again", dir / "straight");
}

TEST(SingleGpuBatchRamp, TakesTheSizesInTurn) {
    const Outcome run = train_small("--micro-batch 4 --batch-ramp 4:1,12:2,8");
    std::vector<double> tokens;
    for (const Json& step : run.steps)
        tokens.push_back(std::round(step.at("tokens_per_second").get<double>() *
                                    step.at("step_ms").get<double>() / 1e3));
    EXPECT_EQ(tokens, (std::vector<double>{160, 480, 480, 320}));
    // The samples follow each other: steps 1 to 3 have used 4 + 12 + 12 when step 4 begins.
    const Outcome plain = train("00_single_gpu",
                                "--layers 2 --seq 40 --no-verify --lr 0 --weight-decay 0 "
                                "--micro-batch 4 --grad-accum 1 --steps 8");
    const Outcome ramp = train("00_single_gpu",
                               "--layers 2 --seq 40 --no-verify --lr 0 --weight-decay 0 "
                               "--micro-batch 4 --batch-ramp 4:1,12:2,4 --steps 4");
    EXPECT_EQ(ramp.of("loss")[0], plain.of("loss")[0]);
    EXPECT_EQ(ramp.of("loss")[3], plain.of("loss")[7]);
}

}  // namespace
}  // namespace ultrascale::test
