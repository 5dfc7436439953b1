// Exercise 05.4: the schedule in the file that CLASSROOM_FILE names, for 2 ranks and 4
// micro-batches.
#include <gtest/gtest.h>

#include <cstdlib>

#include "05_pipeline/2_schedules/schedule_file.h"
#include "05_pipeline/2_schedules/simulate.h"

namespace ultrascale {
using namespace ultrascale::pipeline;
namespace {

Schedule yours() {
    const char* path = std::getenv("CLASSROOM_FILE");
    const Schedule schedule = read_schedule(path == nullptr ? "" : path);
    if (schedule.ranks() != 2 || schedule.micro_batches != 4 || schedule.stages != 2)
        user_error("it should be for 2 ranks, a stage each, and 4 micro-batches");
    return schedule;
}
Simulation simulated() {
    const Schedule schedule = yours();
    return simulate(schedule, Costs::even(schedule, {1, 1, 1}));
}

TEST(YourSchedule, CanRun) { EXPECT_EQ(yours().ranks(), 2); }
TEST(YourSchedule, HoldsTwo) { EXPECT_LE(simulated().peak(), 2) << "micro-batches at a time"; }
TEST(YourSchedule, BeatsOneFOneB) { EXPECT_LT(simulated().seconds, 15) << "F"; }
TEST(YourSchedule, IsAsGoodAsCanBe) { EXPECT_LE(simulated().seconds, 13) << "F"; }

}  // namespace
}  // namespace ultrascale
