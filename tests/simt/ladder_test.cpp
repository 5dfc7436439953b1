// 07_kernels' checks find what is wrong with a kernel, and say at which size.
#include "07_kernels/ladder.h"

#include <gtest/gtest.h>

#include "wrong_kernels.h"

namespace ultrascale::test {
namespace {

using namespace kernels;

Problem vector_add() {
    for (const Problem& problem : first_steps())
        if (problem.name == "vector add") return problem;
    return {};
}

// What is said to be wrong with a kernel.
std::string verdict(void (*run)(const Arguments&)) {
    testing::internal::CaptureStdout();
    const std::vector<Kernel> list = {{0, 0, "tried", "vector add", "", run, ""}};
    const std::vector<Rung> rungs = climb(vector_add(), list, {.seed = 7});
    const std::string table = testing::internal::GetCapturedStdout();
    EXPECT_EQ(rungs.size(), 1u) << table;
    return rungs.at(0).wrong;
}

void expect_found(void (*run)(const Arguments&), const std::string& what) {
    const std::string found = verdict(run);
    EXPECT_NE(found.find(what), std::string::npos) << "found: " << found;
}

TEST(Ladder, ARightKernelPasses) { EXPECT_EQ(verdict(run_right), ""); }

TEST(Ladder, FindsWhatIsWrong) {
    expect_found(run_wrong_sum, "n 1: relative error");
    expect_found(run_forgets_the_rest, "n 1: part of the output was not written");
    expect_found(run_writes_too_far, "out of bounds at wrong_kernels.cu:");
    expect_found(run_misses_a_barrier, "wait at __syncthreads");
    expect_found(run_reads_too_early, "; race: wrong_kernels.cu:");
    expect_found(run_races, "1 race");
}

TEST(Ladder, MeasuresTraffic) {
    testing::internal::CaptureStdout();
    const std::vector<Kernel> list = {{0, 0, "right", "vector add", "", run_right, ""}};
    const std::vector<Rung> rungs = climb(vector_add(), list, {.seed = 7, .size = {6400}});
    testing::internal::GetCapturedStdout();
    ASSERT_EQ(rungs.size(), 1u);
    EXPECT_DOUBLE_EQ(rungs[0].traffic, 4.0 / 3);  // it reads a twice
    EXPECT_EQ(rungs[0].checked, 1);
}

}  // namespace
}  // namespace ultrascale::test
