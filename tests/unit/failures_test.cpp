// --demo failures: the formulas against published numbers and against each other, and the
// simulation against the formulas.
#include <gtest/gtest.h>

#include <cmath>

#include "00_single_gpu/lab/failures_demo.h"

namespace ultrascale {
using namespace ultrascale::single_gpu;
namespace {

constexpr double minute = 60, hour = 3600;

// Daly 2006, figures 3 to 5: C = 5 min, R = 10 min; M = 24 h, 6 h and 15 min.
TEST(CheckpointInterval, IsThePublishedOne) {
    for (const auto& [between, published] :
         {std::pair{24 * hour, 117.0}, {6 * hour, 57.0}, {15 * minute, 9.1}}) {
        const Saving saving{5 * minute, 0, 10 * minute, between};
        EXPECT_NEAR(saving.daly() / minute, published, published < 10 ? 0.05 : 0.5);
        // It loses the least, and Young's, which is longer, loses more.
        const double best = saving.lost_exactly(saving.daly());
        for (const double factor : {0.9, 1.1})
            EXPECT_LT(best, saving.lost_exactly(factor * saving.daly()))
                << between << " " << factor;
        EXPECT_LT(best, saving.lost_exactly(saving.young())) << between;
    }
    EXPECT_DOUBLE_EQ((Saving{8, 0, 0, 100}.young()), 40);
    EXPECT_DOUBLE_EQ((Saving{300, 0, 0, 100}.daly()), 100);  // a save outlasts the cluster
}

// If failures are rare, the first order is all that is left.
TEST(CheckpointInterval, FirstOrderIsTheLimitOfRareFailures) {
    for (const double rare : {1e4, 1e5}) {
        const Saving saving{1, 20, 30, rare * rare};
        EXPECT_NEAR(saving.lost_first_order(rare) / saving.lost_exactly(rare), 1, 10 / rare);
    }
}

// Without failures only the saves cost time; the end, here in the eleventh save, destroys nothing.
TEST(Failures, NoneLosesStallsOnly) {
    const Lost lost = simulate_failures({10, 0, 600, 1e12}, 90, 1095, 3, 1);
    EXPECT_DOUBLE_EQ(lost.stalls, 105.0 / 1095);
    EXPECT_EQ(lost.work + lost.restarts, 0);
}

// Long runs with twenty seeds: their mean may differ from the exact share by a few standard errors.
TEST(Failures, SimulationAgreesWithTheFormula) {
    for (const auto& [saving, T] :
         {std::pair{Saving{3, 0, 600, 3 * hour}, 250.0},           // synchronous
          {Saving{5 * minute, 0, 10 * minute, 15 * minute}, 600},  // fails in saves and restarts
          {Saving{3, 0, 600, 3 * hour}, 3 * hour},                 // fails in most intervals
          {Saving{0, 0, 0, hour}, 600},                            // only lost work
          {Saving{1, 200, 60, hour}, 220}}) {                      // most of the time it writes
        constexpr int seeds = 20;
        double sum = 0, squares = 0;
        for (int seed = 0; seed < seeds; ++seed) {
            const double lost =
                simulate_failures(saving, T, 1e4 * saving.between_failures, 1, uint64_t(seed))
                    .all();
            sum += lost, squares += lost * lost;
        }
        const double mean = sum / seeds,
                     error = std::sqrt((squares / seeds - mean * mean) / (seeds - 1));
        EXPECT_NEAR(mean, saving.lost_exactly(T), 4 * error) << T;
        EXPECT_LT(error, 0.002 * saving.lost_exactly(T) + 1e-4)
            << T;  // so that 4 errors mean a lot
    }
}

// Each part is its term of the first-order sum.
TEST(Failures, PartsAreTheTermsOfTheSum) {
    const Saving saving{2, 0, 30, 10 * hour};
    const double T = 400;
    const Lost lost = simulate_failures(saving, T, 1e5 * saving.between_failures, 1, 1);
    EXPECT_NEAR(lost.stalls / (saving.stall / T), 1, 0.02);
    EXPECT_NEAR(lost.work / (T / 2 / saving.between_failures), 1, 0.02);
    EXPECT_NEAR(lost.restarts / (saving.restart / saving.between_failures), 1, 0.02);
    // Where restarts fail, too, they end after R or at the next failure.
    const Lost often = simulate_failures({60, 0, 600, 900}, T, 1e7, 1, 1);
    EXPECT_NEAR(often.restarts, 1 - std::exp(-600.0 / 900), 0.01);
    // An asynchronous save also loses the work done while it writes.
    const Lost behind = simulate_failures({2, 300, 30, 10 * hour}, T, 1e9, 1, 1);
    EXPECT_NEAR(behind.work / ((T / 2 + 300) / saving.between_failures), 1, 0.02);
}

// No other interval is better than Young's by more than a percent of what it loses; half and twice
// of it lose a quarter more.
TEST(Failures, YoungsIntervalLosesTheLeast) {
    const Saving saving{3, 0, 0, 3 * hour};
    const auto lost = [&](double T) {
        return simulate_failures(saving, T, 3e5 * saving.between_failures, 1, 1).all();
    };
    const double best = lost(saving.young());
    for (double factor = 0.7; factor < 1.45; factor += 0.05)
        EXPECT_LT(best, 1.01 * lost(factor * saving.young())) << factor;
    for (const double factor : {0.5, 2.0})
        EXPECT_NEAR(lost(factor * saving.young()) / best, 1.25, 0.02) << factor;
}

}  // namespace
}  // namespace ultrascale
