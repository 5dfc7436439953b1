// --val-data: the loss over all samples of a file, without an effect on training.
#include <cmath>
#include <map>
#include <regex>

#include "run_program.h"

namespace ultrascale::test {
namespace {

// Returns a text of `samples` samples of 16 bytes and the last target.
std::string some_text(int samples) {
    std::string text;
    for (int i = 0; i <= 16 * samples; ++i) text += char('a' + (i * i + i / 7) % 26);
    return text;
}

// Returns the validation losses by step.
std::map<int, double> validations(const Outcome& outcome) {
    std::map<int, double> losses;
    for (const Json& step : outcome.steps)
        if (step.contains("val_loss"))
            losses[step.at("step").get<int>()] = step.at("val_loss").get<double>();
    return losses;
}

// With a learning rate of 0 the same model trains on the file in one batch of 5 samples, and is
// validated on it in micro-batches of 2, 2 and 1.
TEST(SingleGpuValidation, IsTheLossThatTrainingWouldHaveOnTheFile) {
    TempDir dir;
    const std::string file = dir / "validation.txt";
    put(file, some_text(5) + "past the end");
    for (const char* others : {"", "--ignore-token 101", "--document-token 98 --shuffle",
                               "--attention naive --recompute selective --loss-chunk 7",
                               "--recompute full", "--dtype bf16"}) {
        SCOPED_TRACE(others);
        const std::string still =
            fmt::format("--layers 2 --seq 16 --no-verify --lr 0 --weight-decay 0 {}", others);
        const Outcome trained = train(
            "00_single_gpu", fmt::format("{} --steps 1 --micro-batch 5 --data {}", still, file));
        const Outcome looked = train(
            "00_single_gpu",
            fmt::format("{} --steps 2 --micro-batch 2 --val-every 1 --val-data {}", still, file));
        const std::map<int, double> losses = validations(looked);
        ASSERT_EQ(losses.size(), 2u);
        EXPECT_NEAR(losses.at(1), trained.of("loss")[0],
                    std::string(others) == "--dtype bf16" ? 2e-3 : 1e-6);
        EXPECT_EQ(losses.at(1), losses.at(2));
    }
}

TEST(SingleGpuValidation, LeavesTheTrainingAsItIs) {
    TempDir dir;
    put(dir / "validation.txt", some_text(11));
    for (const char* others : {"", "--dtype bf16 --attention naive",
                               "--recompute full --loss-chunk 19 --shuffle", "--profile"}) {
        SCOPED_TRACE(others);
        const auto with = [&](const std::string& more) {
            return train("00_single_gpu", fmt::format("--layers 2 --seq 16 --steps 3 --no-verify "
                                                      "--micro-batch 2 --grad-accum 2 {} {}",
                                                      others, more));
        };
        const Outcome without = with("--save " + dir / "without"),
                      validated = with(fmt::format("--save {} --val-every 1 --val-data {}",
                                                   dir / "with", dir / "validation.txt"));
        EXPECT_EQ(validations(validated).size(), 3u);
        for (const char* field : {"loss", "grad_norm", "lr"})
            EXPECT_EQ(validated.of(field), without.of(field)) << field;
        for (const char* file :
             {"model.safetensors", "optimizer.safetensors", "trainer_state.json"}) {
            EXPECT_GT(slurp(dir / "with/" + file).size(), 10u);
            EXPECT_TRUE(slurp(dir / "with/" + file) == slurp(dir / "without/" + file)) << file;
        }
        for (const char* category : {"parameters", "gradients", "optimizer", "activations, peak"})
            EXPECT_EQ(validated.summary.at("memory").at(category),
                      without.summary.at("memory").at(category))
                << category;
        if (std::string(others) ==
            "--profile") {  // 3 products a linear, 9 linears, 2 micro-batches: training's alone
            EXPECT_TRUE(std::regex_search(validated.out, std::regex("\n +matmul +54.0 ")))
                << validated.out;
        }
    }
}

TEST(SingleGpuValidation, ComesEveryNStepsAndAfterTheLast) {
    TempDir dir;
    put(dir / "a.txt", std::string(400, 'a')), put(dir / "b.txt", some_text(3));
    const std::string base = "--layers 1 --seq 16 --no-verify --lr 1e-2 --micro-batch 2 ";
    const Outcome run =
        train("00_single_gpu",
              base + fmt::format("--steps 5 --val-every 2 --data {} --val-data {} --save {}",
                                 dir / "a.txt", dir / "b.txt", dir / "saved"));
    const std::map<int, double> losses = validations(run);
    ASSERT_EQ(losses.size(), 3u);
    for (int step : {2, 4, 5}) ASSERT_TRUE(losses.count(step)) << step;
    EXPECT_LT(losses.at(2), losses.at(5));  // a model trained on nothing but a's forgets the others
    const Json& summary = run.summary.at("validation");
    EXPECT_EQ(summary.at("best"), losses.at(2));
    EXPECT_EQ(summary.at("best_step"), 2);
    EXPECT_EQ(summary.at("last"), losses.at(5));
    EXPECT_TRUE(
        contains(run.out, fmt::format("validation at step 4: loss {:.4f} (best {:.4f} at step 2)",
                                      losses.at(4), losses.at(2))));
    // A loaded run continues the count of steps. With no further step, the checkpoint itself is
    // validated.
    const std::string load = base + fmt::format("--data {} --val-data {} --load {} ", dir / "a.txt",
                                                dir / "b.txt", dir / "saved");
    EXPECT_EQ(validations(train("00_single_gpu", load + "--steps 3 --val-every 3")).count(6), 1u);
    const Outcome none = train("00_single_gpu", load + "--steps 0");
    EXPECT_TRUE(contains(none.out, "validation at step 5: ")) << none.out;
    EXPECT_EQ(none.summary.at("validation").at("last"), losses.at(5));
}

}  // namespace
}  // namespace ultrascale::test
