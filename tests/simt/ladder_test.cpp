// 07_kernels' checks detect what is wrong with a kernel, and say at which size.
#include "07_kernels/ladder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "07_kernels/check.h"
#include "wrong_kernels.h"

namespace ultrascale::test {
namespace {

using namespace kernels;

Problem problem_of(const std::vector<Problem>& family, const std::string& name) {
    for (const Problem& problem : family)
        if (problem.name == name) return problem;
    throw std::logic_error("no such problem: " + name);
}
Problem vector_add() { return problem_of(first_steps(), "vector add"); }

// Returns the check's report on a kernel.
std::string said_of(void (*run)(const Arguments&), const Problem& problem, const Sizes& size = {}) {
    testing::internal::CaptureStdout();
    const std::vector<Kernel> list = {{0, 0, "tried", problem.name, "", run, ""}};
    const std::vector<KernelResult> results =
        measure_kernels(problem, list, {.seed = 7, .size = size});
    const std::string table = testing::internal::GetCapturedStdout();
    EXPECT_EQ(results.size(), 1u) << table;
    return results.at(0).wrong;
}

void expect_found(void (*run)(const Arguments&), const std::string& what) {
    const std::string found = said_of(run, vector_add());
    EXPECT_NE(found.find(what), std::string::npos) << "found: " << found;
}

TEST(Ladder, ARightKernelPasses) { EXPECT_EQ(said_of(run_right, vector_add()), ""); }

TEST(Ladder, FindsWhatIsWrong) {
    expect_found(run_wrong_sum, "n 1: relative error");
    expect_found(run_forgets_the_rest, "n 1: part of the output was not written");
    expect_found(run_writes_too_far, "out of bounds at wrong_kernels.cu:");
    expect_found(run_misses_a_barrier, "wait at __syncthreads");
    expect_found(run_reads_too_early, "; race: wrong_kernels.cu:");
    expect_found(run_races, "1 race");
}

// One element of a row may outweigh all others, so a row is checked in pieces.
TEST(Ladder, FindsWhatALargeElementHides) {
    const std::string found =
        said_of(run_wrong_beside_the_target, problem_of(fusion(), "cross-entropy"), {2, 2000});
    EXPECT_NE(found.find("relative error 4.0e-01"), std::string::npos) << "found: " << found;
}

// All 254 numbers of e4m3 (OCP 8-bit floating point: 4 bits of exponent with bias 7, 3 of mantissa;
// 0x7f and 0xff are NaN), numbers between neighbours (ties to the even byte), and numbers that are
// too large or too small.
TEST(Ladder, RoundsToE4m3) {
    const auto value_of = [](int byte) {
        const int exponent = byte >> 3 & 15, mantissa = byte & 7;
        const float size = exponent == 0 ? std::ldexp(float(mantissa), -9)
                                         : std::ldexp(float(8 + mantissa), exponent - 10);
        return byte < 128 ? size : -size;
    };
    const auto expect = [&](float x, int byte) {
        float rounded = x;
        EXPECT_EQ(round_to_e4m3(rounded), byte) << x;
        EXPECT_EQ(rounded, value_of(byte)) << x;
    };
    for (int byte = 0; byte <= 0x7e; ++byte)
        for (const int sign : {0, 128}) {
            const float value = value_of(byte + sign);
            expect(value, byte + sign);
            if (byte == 0x7e) continue;
            const float next = value_of(byte + sign + 1), middle = (value + next) / 2;
            expect(middle, byte + sign + byte % 2);
            expect((value + middle) / 2, byte + sign);
            expect((middle + next) / 2, byte + sign + 1);
        }
    expect(449, 0x7e);
    expect(-1e6, 0xfe);
    expect(1e-9f, 0);
}

// "product fp8 blocks" has a scale for each block, because numbers that fit into a block exactly
// are lost if each matrix has only one scale.
TEST(Ladder, AScaleAMatrixLosesSmallBlocks) {
    const Problem blocks = problem_of(product(), "product fp8 blocks"),
                  matrices = problem_of(product(), "product fp8");
    const Sizes size = {384, 535, 200};
    const int64_t M = size[0], K = size[2];
    const size_t N = size_t(size[1]);
    const Trial trial = make_trial(blocks, size, 7);
    HostInputs one = trial.inputs;
    for (const int matrix : {0, 1}) {
        std::vector<float>& values = one[size_t(matrix)];
        float largest = 0;
        for (int64_t i = 0; i < int64_t(values.size()); ++i) {
            const int64_t row = i / K, k = i % K;
            values[size_t(i)] *= matrix ? trial.inputs[3][size_t(row / 128 * 4 + k / 128)]
                                        : trial.inputs[2][size_t(k / 128 * M + row)];
            largest = std::max(largest, std::abs(values[size_t(i)]));
        }
        const float scale = largest / 448;
        one[size_t(matrix) + 2] = {scale};
        for (float& value : values) value /= scale, round_to_e4m3(value);
    }
    double worst = 0;
    for (int64_t row = 0; row < M; ++row) {
        std::vector<double> want(N, 0.0), got(N, 0.0);
        blocks.reference(size, trial.inputs, row, want.data());
        matrices.reference(size, one, row, got.data());
        double difference = 0, norm = 0;
        for (size_t n = 0; n < N; ++n)
            difference += (got[n] - want[n]) * (got[n] - want[n]), norm += want[n] * want[n];
        worst = std::max(worst, std::sqrt(difference / norm));
    }
    EXPECT_GT(worst, 0.5);  // nothing is left of some rows
}

// Returns the rank that is printed for a student's kernel, the first of the list.
std::string ranking_of(
    const Problem& problem, const Sizes& size,
    const std::vector<std::pair<std::string, void (*)(const Arguments&)>>& all) {
    std::vector<Kernel> list;
    for (const auto& [name, run] : all) list.push_back({0, 0, name, problem.name, "", run, ""});
    testing::internal::CaptureStdout();
    const std::vector<KernelResult> results =
        measure_kernels(problem, list, {.seed = 7, .size = size});
    testing::internal::GetCapturedStdout();
    return ranking(results.at(0), results);
}

// Kernels that move the same bytes may take different times: bank conflicts lower a kernel's rank.
TEST(Ladder, RanksByBankConflictsToo) {
    const Problem transpose = problem_of(memory(), "transpose");
    const auto stands = [&](const auto& mine, const auto& other) {
        return ranking_of(transpose, {256, 192}, {{"mine", mine}, {"other", other}});
    };
    EXPECT_EQ(stands(run_transpose_conflicts, run_transpose_padded),
              "  mine: number 2 of 2 by cost, behind other:\n"
              "        it moves no more, but its shared loads take 32.0 turns instead of 1.0\n");
    EXPECT_EQ(stands(run_transpose_padded, run_transpose_conflicts),
              "  mine: number 1 of 2 by cost\n");
    EXPECT_EQ(stands(run_transpose_padded, run_transpose_padded),
              "  mine: number 1 of 2 by cost, level with other\n");
}

TEST(Ladder, SaysWhatAKernelLosesBy) {
    const Kernel mine{.name = "mine"}, other{.name = "other"};
    const KernelResult best{.kernel = &other, .traffic = 1, .cost = {.total = 1, .memory = 1}};
    const auto behind = [&](double traffic, const Cost& cost, const std::string& why) {
        const KernelResult rung{.kernel = &mine, .traffic = traffic, .cost = cost};
        EXPECT_EQ(ranking(rung, {rung, best}),
                  "  mine: number 2 of 2 by cost, behind other:\n        " + why + "\n");
    };
    behind(1.5, {.total = 1.5, .memory = 1.5}, "it moves 1.50 times the least instead of 1.00");
    behind(1, {.total = 2, .memory = 2, .atomics = 8192},
           "it moves no more, but its 8192 atomic operations wait for each other");
    behind(1, {.total = 3, .memory = 1, .shared = 3},
           "it moves no more, but its shared memory takes longer than memory: 3.00");
    behind(
        1.5,
        {.total = 4, .memory = 1.5, .shared = 4, .conflicts = "stores", .turns = 8, .at_best = 4},
        "it moves 1.50 times the least instead of 1.00,\n"
        "        and its shared stores take 8.0 turns instead of 4.0");
    // Measured kernels are ranked by time, without a reason; a wrong kernel has no rank.
    const KernelResult slow{.kernel = &mine, .seconds = 2},
        fast{.kernel = &other, .seconds = 1.999};
    EXPECT_EQ(ranking(slow, {slow, fast}), "  mine: number 2 of 2 by time, behind other\n");
    EXPECT_EQ(ranking({.kernel = &mine, .wrong = "n 1", .seconds = 1}, {fast}), "");
}

// A turn takes the time of 16 bytes, an atomic operation that of a sector; a kernel's costs add up.
TEST(Ladder, CountsWhatAccessesCost) {
    const auto cost_of = [](void (*run)(const Arguments&), const std::string& problem,
                            const Sizes& size) {
        testing::internal::CaptureStdout();
        const std::vector<Kernel> list = {{0, 0, "tried", problem, "", run, ""}};
        const std::vector<KernelResult> results =
            measure_kernels(problem_of(memory(), problem), list, {.seed = 7, .size = size});
        testing::internal::GetCapturedStdout();
        return results.at(0).cost;
    };
    const Cost transpose = cost_of(run_transpose_conflicts, "transpose", {256, 192});
    EXPECT_DOUBLE_EQ(transpose.memory, 1);
    EXPECT_DOUBLE_EQ(transpose.shared,
                     16.0 * (32 + 1) / (32 * 8));  // a warp loads and stores 4 sectors
    EXPECT_DOUBLE_EQ(transpose.total, transpose.shared);
    const Cost sum = cost_of(run_sum_by_atomics, "sum", {65536});
    EXPECT_EQ(sum.atomics, 65536);
    EXPECT_NEAR(sum.total, (4.0 + 32) / 4, 1e-3);
}

TEST(Ladder, MeasuresTraffic) {
    testing::internal::CaptureStdout();
    const std::vector<Kernel> list = {{0, 0, "right", "vector add", "", run_right, ""}};
    const std::vector<KernelResult> results =
        measure_kernels(vector_add(), list, {.seed = 7, .size = {6400}});
    testing::internal::GetCapturedStdout();
    ASSERT_EQ(results.size(), 1u);
    EXPECT_DOUBLE_EQ(results[0].traffic, 4.0 / 3);  // it reads a twice
    EXPECT_EQ(results[0].checked, 1);
}

}  // namespace
}  // namespace ultrascale::test
