// 00_single_gpu's measured memory equals the formula's prediction to the byte, in runs of the
// program itself. (tests/unit/estimate_test.cpp compares many more shapes.)
#include "run_program.h"

namespace ultrascale::test {
namespace {

const char* const categories[] = {"parameters", "gradients", "optimizer", "activations, peak"};

void expect_equal(const std::string& arguments) {
    SCOPED_TRACE(arguments);
    const Outcome run = train("00_single_gpu", "--no-verify " + arguments);
    if (!run.summary.contains("memory")) return ADD_FAILURE() << "no memory in the summary", void();
    for (const char* category : categories) {
        const Json& row = run.summary["memory"].at(category);
        EXPECT_GT(row.at("measured").get<int64_t>(), 0) << category;
        EXPECT_EQ(row.at("measured"), row.at("predicted")) << category;
    }
    EXPECT_FALSE(contains(run.out, "MISMATCH"));
}

TEST(SingleGpuMemory, IsAsPredictedForEveryWayToCompute) {
    for (const char* dtype : {"--dtype fp32", "--dtype bf16", "--dtype bf16 --fp32-grads"})
        for (const char* recompute : {"none", "selective", "full", "full:1,selective:1"})
            for (const char* attention : {"flash", "naive"})
                expect_equal(fmt::format(
                    "--layers 2 --seq 48 --micro-batch 3 --steps 2 {} --recompute {} --attention "
                    "{} --loss-chunk {}",
                    dtype, recompute, attention, std::string(attention) == "flash" ? 0 : 50));
}

TEST(SingleGpuMemory, IsAsPredictedForPresets) {
    expect_equal("--steps 1");
    expect_equal("--model small --layers 2 --steps 1 --seq 64 --micro-batch 2");
    expect_equal(
        "--model small --layers 2 --steps 1 --seq 64 --micro-batch 2 --attention naive --recompute "
        "selective --dtype bf16");
    expect_equal(
        "--model char --layers 1 --steps 1 --seq 32 --micro-batch 2 --recompute full --grad-accum "
        "2");
}

// The sizes are odd, and chosen so that each moment of the step is the peak once.
TEST(SingleGpuMemory, IsAsPredictedForOddModels) {
    TempDir dir;
    for (const Json& changes :
         {Json{{"hidden_size", 37}, {"intermediate_size", 53}, {"vocab_size", 257}},
          Json{{"vocab_size", 4001}}, Json{{"intermediate_size", 701}},
          Json{{"intermediate_size", 1}, {"head_dim", 60}}, Json{{"num_key_value_heads", 4}},
          Json{{"num_key_value_heads", 1}, {"tie_word_embeddings", true}},
          Json{{"hidden_size", 401}, {"intermediate_size", 3}, {"head_dim", 2}},
          Json{{"num_attention_heads", 24}, {"num_key_value_heads", 12}, {"head_dim", 2}},
          Json{{"num_hidden_layers", 1}}}) {
        put(dir / "config.json", config_json(changes));
        for (const char* others :
             {"--attention naive --recompute selective", "--recompute full --loss-chunk 7",
              "--attention naive --dtype bf16"}) {
            SCOPED_TRACE(changes.dump());
            expect_equal(fmt::format("--model {} --seq 29 --micro-batch 3 --steps 1 {}", dir.path(),
                                     others));
        }
    }
}

TEST(SingleGpuMemory, DoesNotGrowWithStepsOrAccumulation) {
    for (const char* others : {"--steps 6", "--steps 2 --grad-accum 5",
                               "--steps 4 --batch-ramp 2:1,6:1,4 --explain --profile",
                               "--steps 2 --document-token 10 --ignore-token 32",
                               "--steps 2 --grad-accum 2 --noise-scale --sample 3"})
        expect_equal(fmt::format("--layers 2 --seq 32 --micro-batch 2 {}", others));
}

TEST(SingleGpuMemory, VerificationIsNotCounted) {
    const Outcome run = train("00_single_gpu", "--layers 2 --seq 32 --steps 2 --verify");
    for (const char* category : categories)
        EXPECT_EQ(run.summary.at("memory").at(category).at("measured"),
                  run.summary.at("memory").at(category).at("predicted"))
            << category;
}

}  // namespace
}  // namespace ultrascale::test
