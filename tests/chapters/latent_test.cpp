// Latent attention in the chapters: equal to one device, with memory and communication as
// predicted, whatever is kept or made again.
#include "compare_runs.h"
#include "refused.h"

namespace ultrascale::test {
namespace {

const char* const common = "--model latent-nano --layers 3 --seq 40 --steps 2 --micro-batch 4";

TEST(Latent, EveryTechniqueEqualsOneDevice) {
    expect_exact_peaks(
        common, {{0, "00_single_gpu", "--recompute selective --loss-chunk 37"},
                 {0, "00_single_gpu", "--recompute selective --attention naive --dropout 0.1"},
                 {0, "00_single_gpu", "--recompute full --dtype bf16 --optimizer muon"},
                 {2, "03_tensor_parallel",
                  "--tp 2 --sequence-parallel --recompute full:1,selective:1"},
                 {2, "01_data_parallel", ""},
                 {2, "02_zero", "--stage 3"},
                 {2, "03_tensor_parallel", "--tp 2 --overlap chunk"},
                 {2, "03_tensor_parallel", "--tp 2 --sequence-parallel --recompute selective"},
                 {2, "03_tensor_parallel",
                  "--tp 2 --sequence-parallel --keep-gathered on --overlap async --dropout 0.1"},
                 {2, "04_context_parallel", "--cp 2"},
                 {2, "04_context_parallel", "--cp 2 --variant all-gather --recompute selective"},
                 {2, "05_pipeline", "--pp 2 --grad-accum 4 --schedule zb-h1 --recompute selective"},
                 {4, "09_5d_parallel", "--tp 2 --cp 2 --sequence-parallel"},
                 {4, "09_5d_parallel", "--tp 2 --pp 2 --grad-accum 2 --zero 1"}});
}

// Attention in tiles has something to drop here, so that a budget need not recompute whole layers.
TEST(Latent, ABudgetMakesHeadsAgain) {
    const Outcome run = train(0, "00_single_gpu", fmt::format("{} --memory-budget 0.0145", common));
    expect_verified(run);
    const Json& recompute = run.summary.at("configuration").at("recompute");
    EXPECT_EQ(recompute.at("selective"), 3);
    EXPECT_EQ(recompute.at("full"), 0);
}

TEST(Latent, IsRefusedWhereOnlyALlamaFits) {
    for (const auto& [chapter, arguments, telling] :
         std::vector<std::tuple<const char*, const char*, const char*>>{
             {"02_zero", "--demo memory", "latent attention"},
             {"03_tensor_parallel", "--demo scaling", "latent attention"},
             {"08_mixed_precision", "--recipe te", "latent attention"}}) {
        const Outcome outcome = run(chapter, fmt::format("--model latent-nano {}", arguments));
        expect_one_error_line(outcome, {telling});
    }
}

}  // namespace
}  // namespace ultrascale::test
