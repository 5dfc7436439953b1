// --estimate in every training chapter prints the prediction of the run's own report, but takes
// neither the memory nor the time of a run.
#include <chrono>

#include "compare_runs.h"
#include "run_program.h"

namespace ultrascale::test {
namespace {

// Returns the predictions without the measurements that a run adds.
Json predicted(const Json& figures) {
    Json kept = Json::object();
    for (const auto& [name, value] : figures.items())
        if (name.starts_with("predicted"))
            kept[name] = value;
        else if (value.is_object())
            if (const Json inside = predicted(value); !inside.empty()) kept[name] = inside;
    return kept;
}

void expect_what_a_run_predicts(int ranks, const std::string& chapter, const std::string& options) {
    SCOPED_TRACE(fmt::format("{} ranks: {} {}", ranks, chapter, options));
    const std::string all = "--layers 2 --seq 16 --micro-batch 2 " + options;
    const Json estimate = train(ranks, chapter, all + " --estimate").summary,
               run = train(ranks, chapter, all + " --no-verify --steps 2").summary;
    for (const char* section : {"memory", "communication", "communication_by_group"})
        EXPECT_EQ(estimate.at(section), predicted(run.at(section))) << section;
    ASSERT_EQ(estimate.at("memory_by_rank").size(), run.at("memory_by_rank").size());
    for (size_t rank = 0; rank < run.at("memory_by_rank").size(); ++rank)
        EXPECT_EQ(estimate["memory_by_rank"][rank], predicted(run["memory_by_rank"][rank])) << rank;
    EXPECT_EQ(estimate.at("estimate").at("fits"), true);
    for (const char* key : {"model", "parameters", "layout", "global_batch", "seq"})
        EXPECT_EQ(estimate["configuration"].at(key), run["configuration"].at(key)) << key;
}

TEST(Estimate, IsWhatASingleGpuPredicts) {
    expect_what_a_run_predicts(0, "00_single_gpu", "--recompute full --grad-accum 2");
}

// Every chapter that has --memory-budget chooses the same for --estimate, keeps to it, and equals
// one device.
TEST(Estimate, KeepsToAMemoryBudget) {
    for (const auto& [ranks, chapter, gib] :
         {std::tuple(0, "00_single_gpu --grad-accum 2", 0.0073),
          {2, "01_data_parallel --bucket-mb 0.1", 0.0073},
          {2, "02_zero --stage 3", 0.0062},
          {2, "02_zero --stage 3 --offload activations", 0.0062},
          {4, "03_tensor_parallel --tp 2 --sequence-parallel", 0.00366},
          {2, "04_context_parallel --cp 2", 0.0071}}) {
        const std::string program(chapter, strchr(chapter, ' ')),
            options = fmt::format("{} --memory-budget {}", strchr(chapter, ' '), gib);
        expect_what_a_run_predicts(ranks, program, options);
        const Outcome run =
            train(ranks, program, "--layers 2 --seq 16 --micro-batch 2 --steps 2" + options);
        expect_verified(run);
        EXPECT_EQ(run.summary.at("configuration").at("recompute").at("full"), 1);
        EXPECT_LE(run.summary.at("memory").at("peak").at("predicted").get<double>(),
                  gib * (1 << 30));
    }
}

TEST(Estimate, IsWhatDataParallelismPredicts) {
    const std::string chapter = "01_data_parallel", accumulate = " --grad-accum 2 --no-sync off";
    for (const char* sync : {"naive", "overlap", "bucket --bucket-mb 0.1", "ring",
                             "ring --ring-directions both", "tree", "diloco --inner-steps 2"})
        expect_what_a_run_predicts(2, chapter, fmt::format("--sync {}", sync));
    expect_what_a_run_predicts(2, chapter, "--dtype bf16 --bucket-mb 0.1" + accumulate);
    expect_what_a_run_predicts(2, chapter, "--dtype bf16 --fp32-grads --sync ring" + accumulate);
    expect_what_a_run_predicts(4, chapter,
                               "--sync hierarchical --bucket-mb 0.1 --node-size 2 --inter-gbps 10");
}

TEST(Estimate, IsWhatZeroPredicts) {
    for (int stage = 0; stage <= 3; ++stage)
        expect_what_a_run_predicts(2, "02_zero", fmt::format("--grad-accum 2 --stage {}", stage));
    expect_what_a_run_predicts(2, "02_zero", "--stage 1 --grad-accum 2 --no-sync off");
    expect_what_a_run_predicts(2, "02_zero", "--stage 3 --offload optimizer --prefetch 2");
    expect_what_a_run_predicts(4, "02_zero", "--stage 2 --shard-size 2 --grad-accum 2");
    expect_what_a_run_predicts(4, "02_zero", "--stage 3 --secondary-shard 2 --grad-accum 2");
}

TEST(Estimate, IsWhatTensorParallelismPredicts) {
    for (const char* options : {"", "--sequence-parallel", "--overlap async --dtype bf16",
                                "--recompute full --partition-checkpoints", "--overlap halves"})
        expect_what_a_run_predicts(2, "03_tensor_parallel", options);
    expect_what_a_run_predicts(4, "03_tensor_parallel", "--tp 2 --sequence-parallel");
}

TEST(Estimate, IsWhatContextParallelismPredicts) {
    for (const char* options : {"--recompute full --grad-accum 2", "--variant all-gather",
                                "--variant ulysses --dtype bf16", "--bidirectional on"})
        expect_what_a_run_predicts(2, "04_context_parallel", options);
    expect_what_a_run_predicts(4, "04_context_parallel", "--variant usp --ulysses 2");
    expect_what_a_run_predicts(4, "04_context_parallel", "--cp 2 --ring-backward restarted");
}

TEST(Estimate, IsWhatPipelinesPredict) {
    for (const char* options : {"--schedule 1f1b --grad-accum 4 --post-validation --clip 0",
                                "--schedule dualpipe --grad-accum 4 --recompute full"})
        expect_what_a_run_predicts(2, "05_pipeline", options);
    expect_what_a_run_predicts(4, "05_pipeline", "--pp 2 --grad-accum 2 --layers 5 --split 3,2");
}

// The run has even loads, which an estimate assumes.
TEST(Estimate, IsWhatExpertParallelismPredicts) {
    for (const char* options : {"", "--shared 1 --recompute full --grad-accum 2", "--dtype bf16"})
        expect_what_a_run_predicts(2, "06_expert_parallel",
                                   std::string("--force-balance ") + options);
    expect_what_a_run_predicts(2, "06_expert_parallel", "--capacity-factor 1.5 --aux-coef 0");
}

TEST(Estimate, IsWhatMixedPrecisionPredicts) {
    for (const char* options : {"--recipe fp8-lm", "--recipe te --amax-history 8 --grad-accum 2",
                                "--recipe deepseek --keep-fp8 --recompute full"})
        expect_what_a_run_predicts(2, "08_mixed_precision", options);
}

// There are 257 tokens, so the second rank has one more of them than the first.
TEST(Estimate, IsOfTheRankThatHasTheLeastLeft) {
    TempDir dir;
    put(dir / "config.json", config_json({{"vocab_size", 257}}));
    const Outcome outcome =
        train(2, "03_tensor_parallel", fmt::format("--estimate --model {} --seq 16", dir.path()));
    EXPECT_EQ(outcome.summary.at("estimate").at("rank"), 1);
    EXPECT_EQ(outcome.summary.at("memory"), outcome.summary.at("memory_by_rank").at(1));
    EXPECT_TRUE(contains(outcome.out, "(rank 1, which has the least left)")) << outcome.out;
}

// 405 billion parameters under a limit of 1 MiB: nothing is allocated. That nothing fits is an
// answer, not an error.
TEST(Estimate, OfTheLargestModelIsQuick) {
    const std::string large =
        "--estimate --model llama-3-405b --dtype bf16 --fp32-grads --device-memory 0.001 ";
    for (const auto& [chapter, own] : {std::pair{"01_data_parallel", ""},
                                       {"01_data_parallel", "--sync ring"},
                                       {"02_zero", "--stage 3"},
                                       {"03_tensor_parallel", "--sequence-parallel"},
                                       {"04_context_parallel", ""},
                                       {"05_pipeline", "--schedule zbv --grad-accum 64"}}) {
        SCOPED_TRACE(fmt::format("{} {}", chapter, own));
        const auto begin = std::chrono::steady_clock::now();
        const Outcome outcome = train(4, chapter, large + own);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        EXPECT_LT(seconds.count(), 20);  // takes one second on an idle machine
        EXPECT_EQ(outcome.summary.at("estimate").at("fits"), false);
        EXPECT_TRUE(contains(outcome.out, "405853.389 M parameters")) << outcome.out;
        EXPECT_TRUE(contains(outcome.out, "a rank has 1.02 MiB here: it does not fit"))
            << outcome.out;
        EXPECT_GT(outcome.summary.at("memory").at("parameters").at("predicted"), 100e9);
        EXPECT_TRUE(outcome.steps.empty());
    }
}

}  // namespace
}  // namespace ultrascale::test
