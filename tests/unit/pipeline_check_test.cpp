// 05_pipeline: the checker finds the fault in a schedule, and says where it is.
#include <gtest/gtest.h>

#include "05_pipeline/2_schedules/schedules.h"

namespace ultrascale {
using namespace ultrascale::pipeline;
namespace {

std::string fault(const Schedule& schedule, double most = 1e9) {
    try {
        check_schedule(schedule, most);
    } catch (const UserError& error) {
        return error.what();
    }
    return "";
}
// Returns the fault in the text of a schedule file.
std::string fault_of(const std::string& text, double most = 1e9) {
    const std::string all = fault(ScheduleReader("x", text).read(), most);
    const std::string name = "schedule file:x: ";
    EXPECT_TRUE(all.empty() || all.starts_with(name)) << all;
    return all.substr(std::min(all.size(), name.size()));
}

TEST(PipelineCheck, PrintsTheCircleOfWaits) {
    EXPECT_EQ(fault_of("0: F0 D0 F1 D1\n1: F0 F1 D0 D1"),
              "it hangs: rank 0 waits at D0 for D0 of rank 1, which waits at F1 for F1 of rank 0");
    // Rank 0 also waits, but is not part of the cycle.
    EXPECT_EQ(fault_of("0: F0 D0 F1 D1\n1: F0 D0 F1 D1\n2: F0 F1 D0 D1"),
              "it hangs: rank 1 waits at D0 for D0 of rank 2, which waits at F1 for F1 of rank 1");
    EXPECT_EQ(fault_of("stages: 0 1\n0: F0b F0a D0b D0a"),
              "it hangs: rank 0 waits at F0b for F0a of its own");
    // Neither of two actions that run together may wait for the rank of the other one.
    EXPECT_EQ(fault_of("0: F0 F1+D0 D1\n1: F0 F1+D0 D1"),
              "it hangs: rank 0 waits at D0 for D0 of rank 1, which waits at F1 for F1 of rank 0");
    EXPECT_EQ(fault_of("0: F0 F1 D0 D1\n1: F0 F1+D0 D1"), "");
}

TEST(PipelineCheck, NamesRankAndAction) {
    const auto first_rank = [](const std::string& list) {
        return fault_of("0: " + list + "\n1: F0 F1 D0 D1");
    };
    EXPECT_EQ(first_rank("F0 F1 B0 W0 D1"), "");
    EXPECT_EQ(first_rank("F0 D0 D1 F1"), "rank 0: D1 needs F1, which is not done before it");
    EXPECT_EQ(first_rank("F0 F1 W0 B0 D1"), "rank 0: W0 needs B0, which is not done before it");
    EXPECT_EQ(first_rank("F0 F1 D0"), "rank 0: D1 is missing, or B and W in its place");
    EXPECT_EQ(first_rank("F0 F1 D0 B1"), "rank 0: W1 is missing");
    EXPECT_EQ(first_rank("F0 D0"), "rank 0: F1 is missing");
    EXPECT_EQ(first_rank("F0 F0 F1 D0 D1"), "rank 0: F0 is done already");
    EXPECT_EQ(first_rank("F0 F1 D0 D1 W1"), "rank 0: W1 is done already; D is B and W together");
    EXPECT_EQ(first_rank("F0 F1 D0 B1 D1 W1"), "rank 0: D1 is done already; D is B and W together");
    EXPECT_EQ(first_rank("F0 F1 D0+D1"), "rank 0: D0+D1: a forward runs together with a D or B");
    EXPECT_EQ(first_rank("F0 F1+D1 D0"),
              "rank 0: F1+D1 are of one micro-batch, and one needs the other");
    EXPECT_EQ(fault_of("0: F0 F1 D0 D1", 1.5),
              "rank 0 holds the activations of 2 micro-batches during F1; 1.5 fit");
}

TEST(PipelineCheck, EveryStageIsOnOneRank) {
    const std::string lists = "\n0: F0a D0a F0b D0b\n1: F0a D0a F0b D0b";
    EXPECT_EQ(fault_of("stages: 0 3 | 1 4" + lists), "no rank holds stage 2");
    EXPECT_EQ(fault_of("stages: 0 1 | 1 2" + lists), "rank 0 and rank 1 both hold stage 1");
    EXPECT_EQ(fault_of("stages: 0 1' | 1 2'" + lists), "no rank holds stage 2");
    EXPECT_EQ(fault_of("stages: 0 1' | 1 0'" + lists),
              "1 micro-batches cannot be shared by two copies of the model");
    EXPECT_EQ(fault_of("stages: 0 1' | 1 0'\n0: F0a F1b F0b F1a\n1: F0a"),
              "rank 0: F0b: the micro-batch belongs to the other copy of the model");
}

// Breaks every schedule at every place: removes an action, repeats one, and moves one before an
// action that it needs. The checker must find all of these faults.
TEST(PipelineCheck, FindsEverySingleFault) {
    int broken = 0;
    for (const std::string& name : schedule_names()) {
        const Schedule whole = make_schedule(name, 4, 8);
        ASSERT_EQ(fault(whole), "");
        for (size_t r = 0; r < 4; ++r)
            for (size_t i = 0; i < whole.actions[r].size(); ++i) {
                const Action action = whole.actions[r][i];
                Schedule without = whole, twice = whole, late = whole;
                without.actions[r].erase(without.actions[r].begin() + int64_t(i));
                twice.actions[r].push_back(action);
                std::erase(late.actions[r], action);
                late.actions[r].push_back(action);
                EXPECT_NE(fault(without), "") << name << " " << to_string(action, true);
                EXPECT_NE(fault(twice), "") << name << " " << to_string(action, true);
                if (!frees(action.kind)) {  // a D or W may be last
                    EXPECT_NE(fault(late), "") << name << " " << to_string(action, true);
                }
                ++broken;
            }
    }
    EXPECT_GT(broken, 1000);
}

}  // namespace
}  // namespace ultrascale
