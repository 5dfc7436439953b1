// Like modes_test.cpp, for the modes of 09 that take ranks or seconds: every option is refused, or
// changes the mode's output. (--calibrate measures, so its output changes anyway.)
#include <algorithm>

#include "mode_effects.h"

namespace ultrascale::test {
namespace {

void expect_effects(const std::string& always, int ranks, std::vector<std::string> not_here) {
    ModeEffects effects(always, ranks);
    for (const OneOfAll& option : all_options())
        if (!always.starts_with(option.name) && std::ranges::count(not_here, option.name) == 0)
            effects.expect(option);
}

TEST(LongModes, EstimateHonoursOrRefusesAllOptions) {
    // The rate between nodes belongs to --node-size, which the table of axes uses.
    expect_effects("--estimate --micro-batch 1 --grad-accum 4", 4, {"--inter-gbps"});
}
TEST(LongModes, PlaybookHonoursWhatItReads) {
    ModeEffects effects("--playbook");
    for (const OneOfAll& option : all_options())
        for (const char* name : {"--json", "--html", "--svg"})
            if (option.name == name) effects.expect(option);
}

}  // namespace
}  // namespace ultrascale::test
