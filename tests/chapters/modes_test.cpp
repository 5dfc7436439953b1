// Each option that a mode of 09 reads changes the mode's output. Modes that take ranks or seconds
// are in long_modes_test.cpp.
#include <algorithm>

#include "mode_effects.h"
#include "refused.h"

namespace ultrascale::test {
namespace {

// Tries those of all_options() that the mode reads.
void expect_effects(const std::string& mode, const std::string& always) {
    ModeEffects effects(always);
    for (const ModeOptions& one : all_modes())
        for (const OneOfAll& option : all_options())
            if (one.mode == mode && std::ranges::count(one.reads, option.name) > 0)
                effects.expect(option);
}

TEST(Modes, PlanHonoursWhatItReads) {
    expect_effects("--plan", "--plan --gpus 8 --batch-tokens 4K");
}
TEST(Modes, ExplainLayoutHonoursWhatItReads) {
    expect_effects("--explain-layout", "--explain-layout --gpus 8 --micro-batch 1 --grad-accum 4");
}
TEST(Modes, PublishedHonoursWhatItReads) { expect_effects("--published", "--published"); }

// The same rule holds in the other chapters: demos show fixed sizes, and --estimate shows no course
// of a training.
TEST(Modes, OfOtherChaptersRefuseWhatTheyDoNotRead) {
    for (const auto& [chapter, mode] : {std::pair{"00_single_gpu", "--demo parameters"},
                                        {"00_single_gpu", "--demo batch"},
                                        {"00_single_gpu", "--demo failures"},
                                        {"01_data_parallel", "--demo collectives"},
                                        {"01_data_parallel", "--demo planet"},
                                        {"02_zero", "--demo memory"},
                                        {"03_tensor_parallel", "--demo linear"},
                                        {"04_context_parallel", "--demo ring"},
                                        {"05_pipeline", "--simulate p=4"},
                                        {"06_expert_parallel", "--demo route"},
                                        {"08_mixed_precision", "--demo scales"}}) {
        const std::string name = std::string(mode).substr(0, std::string(mode).find(' '));
        expect_one_error_line(run(chapter, mode + std::string(" --seq 64")),
                              {"--seq has no effect with " + name + ": "});
    }
    expect_one_error_line(run("03_tensor_parallel", "--demo scaling --steps 9"),
                          {"--steps has no effect with --demo: "});
    for (const char* option : {"--seed 3", "--save x", "--steps 9", "--document-token 3"})
        expect_one_error_line(run("04_context_parallel", fmt::format("--estimate {}", option)),
                              {" has no effect with --estimate: "});
}

}  // namespace
}  // namespace ultrascale::test
