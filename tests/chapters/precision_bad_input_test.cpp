// 08_mixed_precision with wrong input: one line that says what would be right.
#include <cstring>

#include "refused.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "08_mixed_precision";

void refuses(const std::string& arguments, const std::vector<std::string>& telling, int ranks = 0) {
    expect_ranks_refuse(ranks, chapter, "--steps 2 --seq 32 --layers 1 " + arguments, telling);
}

TEST(PrecisionBadInput, RecipesAndTheirTricks) {
    refuses("--recipe fp9", {"--recipe: fp9", "fp16", "deepseek"});
    refuses("--recipe fp9 --loss-scale-start 4 --trap x", {"--recipe: fp9", "fp16", "deepseek"});
    refuses("--dtype bf16", {"--dtype", "--recipe"});
    refuses("--fp32-grads", {"--fp32-grads", "--recipe"});
    refuses("--recipe fp16 --without wheels", {"wheels", "master, scaling or accumulation"});
    refuses("--recipe bf16 --without scaling", {"scaling", "recipe bf16"});
    refuses("--recipe fp16 --without scaling,scaling", {"--without scaling", "fp16"});
    refuses("--recipe bf16 --stochastic-rounding", {"--stochastic-rounding", "--without master"});
}

TEST(PrecisionBadInput, LossScales) {
    refuses("--recipe fp16 --loss-scale 1000", {"--loss-scale 1000", "power of two"});
    refuses("--recipe fp16 --loss-scale 2x", {"--loss-scale 2x", "power of two"});
    refuses("--recipe fp16 --loss-scale 0", {"--loss-scale 0", "power of two"});
    refuses("--recipe fp16 --loss-scale-start 100", {"--loss-scale-start 100", "power of two"});
    refuses("--recipe bf16 --loss-scale 1024", {"--loss-scale", "recipe bf16"});
    refuses("--recipe fp16 --without scaling --loss-scale 8", {"--without scaling"});
}

TEST(PrecisionBadInput, OptionsOfFp8) {
    for (const char* option : {"--gradient-format e4m3", "--keep-fp8", "--smooth-swiglu",
                               "--power-of-two-scales", "--fast-accumulation=all", "--unfused"})
        refuses(fmt::format("--recipe bf16 {}", option), {"recipe bf16", "fp8"});
    for (const char* option :
         {"--gradient-format e4m3", "--keep-fp8", "--smooth-swiglu", "--power-of-two-scales",
          "--fast-accumulation=all", "--unfused", "--head fp8"})
        refuses(fmt::format("--recipe plain-fp8 {}", option), {"recipe plain-fp8", "tensor"});
    refuses("--recipe deepseek --smooth-swiglu", {"--smooth-swiglu", "deepseek"});
    refuses("--recipe te --micro-batch 1 --seq 20", {"--seq 20", "multiples of 16"});
    refuses("--recipe bf16 --head fp8", {"--head has no effect", "fp8"});
    refuses("--recipe te --head fp8 --loss-chunk 40", {"--loss-chunk 40", "multiples of 16"});
    refuses("--recipe te --head fp16", {"--head", "bf16", "fp8"});
    refuses("--recipe bf16 --amax-history 4", {"--amax-history has no effect", "te"});
    refuses("--recipe bf16 --sum-scaling pre", {"--sum-scaling has no effect"});
    refuses("--recipe bf16 --loss-scale-window 4", {"--loss-scale-window has no effect"});
}

TEST(PrecisionBadInput, MistakesThatCannotBeMade) {
    refuses("--trap none-such", {"--trap", "none-such", "one-steps"});
    refuses("--recipe bf16 --trap unscale-twice", {"unscale-twice", "bf16"});
    refuses("--recipe fp16 --trap one-steps", {"one-steps", "one rank"});
    refuses("--recipe bf16 --trap neighbours-scale", {"neighbours-scale", "bf16"});
    refuses("--recipe te --trap stale-weights", {"stale-weights", "te"});
    refuses("--recipe plain-fp8 --trap neighbours-scale", {"neighbours-scale", "plain-fp8"});
}

// The states of a training are in its recipe's formats; its weights alone go into any recipe.
TEST(PrecisionBadInput, CheckpointsOfAnotherRecipe) {
    const TempDir saved;
    const std::string dir = saved / "model", sizes = "--layers 1 --micro-batch 1 --seq 32 ",
                      load = fmt::format("--load {} ", dir);
    const Outcome made = run(
        chapter, fmt::format("{} --recipe deepseek --steps 1 --no-verify --save {}", sizes, dir));
    ASSERT_EQ(made.exit_code, 0) << made.err;
    // Whichever dtypes differ, the recipe is named.
    for (const char* other : {"nanotron", "te", "bf16 --without master"})
        expect_ranks_refuse(0, chapter, fmt::format("--steps 1 {} --recipe {}", load, other),
                            {fmt::format("--recipe {}:", other), dir, "--recipe deepseek"});
    const std::string state = dir + "/trainer_state.json";
    Json changed = Json::parse(slurp(state));
    changed["recipe"] = 3;
    put(state, changed.dump());
    expect_ranks_refuse(0, chapter, fmt::format("--steps 1 {} --recipe deepseek", load),
                        {state, "\"recipe\" is not a name"});
    fs::remove(state), fs::remove(dir + "/optimizer.safetensors");
    const Outcome other =
        run(chapter,
            fmt::format("--recipe te --no-verify --peak-tflops 1 --seq 32 --steps 1 {}", load));
    EXPECT_EQ(other.exit_code, 0) << other.err;
}

TEST(PrecisionBadInput, WeightsThatFp16CannotHold) {
    const TempDir saved;
    const std::string dir = saved / "model", file = dir + "/model.safetensors";
    const Outcome made =
        run(chapter, fmt::format("--recipe fp32 --layers 1 --steps 0 --save {}", dir));
    ASSERT_EQ(made.exit_code, 0) << made.err;
    for (const char* state : {"/trainer_state.json", "/optimizer.safetensors"})
        fs::remove(dir + state);
    std::string bytes = slurp(file);
    const float large = 65520;
    std::memcpy(bytes.data() + bytes.size() - sizeof large, &large, sizeof large);
    put(file, bytes);
    expect_ranks_refuse(0, chapter, fmt::format("--recipe fp16 --steps 1 --load {}", dir),
                        {dir, "65520", "65504", "bf16"});
    const Outcome wide = run(chapter, fmt::format("--recipe bf16 --no-verify --peak-tflops 1 "
                                                  "--steps 1 --seq 32 --load {}",
                                                  dir));
    EXPECT_EQ(wide.exit_code, 0) << wide.err;
}

}  // namespace
}  // namespace ultrascale::test
