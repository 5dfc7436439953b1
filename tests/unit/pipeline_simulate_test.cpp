// 05_pipeline: the simulator, compared with the papers' statements on each schedule, in closed
// formulas where they are exact.
#include <gtest/gtest.h>

#include "05_pipeline/2_schedules/schedules.h"
#include "05_pipeline/2_schedules/simulate.h"
#include "05_pipeline/lab/formulas.h"

namespace ultrascale {
using namespace ultrascale::pipeline;
namespace {

constexpr StageCost equal{1, 1, 1}, usual{1, 1.3, 0.7};  // F, B, W

Simulation run(const Schedule& schedule, const StageCost& cost, double hop = 0) {
    check_schedule(schedule);
    return simulate(schedule, Costs::even(schedule, cost, hop));
}
Simulation run(std::string_view name, int p, int m, const StageCost& cost, double hop = 0) {
    return run(make_schedule(name, p, m), cost, hop);
}

TEST(PipelineSimulate, TableOfSchedules) {
    struct Row {
        std::string_view name;
        double step, own, peak, step_usual;  // bubbles at F = B = W = 1; at F, B, W = 1, 1.3, 0.7
    };
    for (const Row& row :
         {Row{"naive", 72, 72, 1, 72}, Row{"afab", 9, 9, 8, 9}, Row{"1f1b", 9, 9, 4, 9},
          Row{"1f1b-overlap", 9, 9, 8, 9}, Row{"interleaved", 4.5, 4.5, 5.5, 4.5},
          Row{"breadth-first", 4.5, 4.5, 8, 4.5}, Row{"zb-h1", 3, 3, 4, 4.8},
          Row{"zb-h2", 3, 0, 7, 3}, Row{"zbv", 1.5, 0, 4, 1.95}, Row{"v-half", 2.5, 2.5, 3, 4.75},
          Row{"dualpipe", 2, 2, 5, 2.6}, Row{"dualpipev", 3, 3, 4.5, 3.9}}) {
        const Simulation result = run(row.name, 4, 8, equal);
        EXPECT_DOUBLE_EQ(result.mean_step_bubble(), row.step) << row.name;
        EXPECT_DOUBLE_EQ(result.worst_own_bubble(), row.own) << row.name;
        EXPECT_DOUBLE_EQ(result.peak(), row.peak) << row.name;
        EXPECT_NEAR(run(row.name, 4, 8, usual).mean_step_bubble(), row.step_usual, 1e-9)
            << row.name;
    }
    const Schedule dual_pipe_v = apart(make_schedule("dualpipev", 4, 8));
    EXPECT_DOUBLE_EQ(run(dual_pipe_v, equal).mean_step_bubble(), 1.5);
}

TEST(PipelineSimulate, BubblesAsTheFormulasSay) {
    for (const auto& [f, b, w] : {equal, usual, StageCost{2, 1.5, 1.25}})
        for (const int p : {2, 3, 4, 8})
            for (const int m : {p, p + 1, 2 * p, 4 * p}) {
                const StageCost cost{f, b, w};
                const double d = b + w;
                const auto bubble = [&](const Schedule& schedule) {
                    return run(schedule, cost).mean_step_bubble();
                };
                EXPECT_NEAR(bubble(naive(p, m)), (p - 1) * m * (f + d), 1e-9);
                EXPECT_NEAR(bubble(afab(p, m)), (p - 1) * (f + d), 1e-9);
                EXPECT_NEAR(bubble(one_f_one_b(p, m)), (p - 1) * (f + d), 1e-9);
                for (const int v : {2, 3}) {
                    EXPECT_NEAR(bubble(breadth_first(p, m, v)), (p - 1) * (f + d) / v, 1e-9);
                    for (const int n : {p, 2 * p, m})
                        if (m % n == 0) {
                            EXPECT_NEAR(bubble(interleaved(p, m, v, n)), (p - 1) * (f + d) / v,
                                        1e-9)
                                << p << " " << m << " " << v << " " << n;
                        }
                }
                if (b >= w) {
                    EXPECT_NEAR(bubble(zb_h1(p, m)), (p - 1) * (f + b - w), 1e-9);
                }
            }
    // ZB-H2 needs enough micro-batches; if W > F, its own bubble is not F+B-2W.
    for (const auto& [cost, own] :
         {std::pair{equal, 0.0}, {usual, 0.9}, {StageCost{1, 1.5, 2}, 0.5}})
        for (const int p : {2, 3, 4, 8, 16})
            for (const int m : {2 * p - 1, 2 * p, 4 * p}) {
                const Simulation h2 = run("zb-h2", p, m, cost);
                const Formulas formula = formulas("zb-h2", p, m, {}, cost);
                EXPECT_NEAR(h2.worst_own_bubble(), (p - 1) * own, 1e-9);
                EXPECT_NEAR(h2.worst_own_bubble(), formula.own_bubble.value(), 1e-9);
                EXPECT_NEAR(h2.mean_step_bubble(), formula.step_bubble.value(), 1e-9);
            }
    for (const int p : {1, 2, 3, 4, 8})
        for (const int m : {2 * p, 4 * p}) {
            const Simulation overlap = run("1f1b-overlap", p, m, usual);
            EXPECT_NEAR(overlap.mean_step_bubble(), (p - 1) * 3, 1e-9);
            EXPECT_EQ(overlap.peak(), 2 * p);
        }
    // These are exact only for F = B = W.
    for (const int p : {2, 4, 8, 16})
        for (const int m : {2 * p, 4 * p}) {
            EXPECT_DOUBLE_EQ(run("zbv", p, m, equal).worst_own_bubble(), 0);
            EXPECT_DOUBLE_EQ(run("dualpipe", p, m, equal).mean_step_bubble(), (p / 2 - 1) * 2);
            EXPECT_DOUBLE_EQ(run("dualpipev", p, m, equal).mean_step_bubble(), (p - 1) * 2 / 2);
            EXPECT_LT(run("v-half", p, m, equal).mean_step_bubble(), 0.5 * (p - 1) * 3);
        }
}

TEST(PipelineSimulate, TooFewMicroBatches) {
    EXPECT_DOUBLE_EQ(run("zb-h1", 8, 8, equal).seconds, 31);
    EXPECT_DOUBLE_EQ(run("zb-h2", 8, 8, equal).seconds, 34);
    EXPECT_DOUBLE_EQ(run("zb-h1", 8, 15, equal).seconds, run("zb-h2", 8, 15, equal).seconds);
    // This is why interleaved needs whole groups: all ranks wait for a last group of one
    // micro-batch.
    EXPECT_DOUBLE_EQ(run(interleaved(8, 16, 2, 8), equal).mean_step_bubble(), 10.5);
    EXPECT_DOUBLE_EQ(run(interleaved(8, 17, 2, 8), equal).mean_step_bubble(), 24);
}

// Returns the time that another micro-batch costs beyond its work.
double lost_a_micro_batch(std::string_view name, int p, double hop, StageCost cost = equal) {
    const int m = 8 * p;
    return (run(name, p, 2 * m, cost, hop).seconds - run(name, p, m, cost, hop).seconds) / m - 3;
}

TEST(PipelineSimulate, LatencyOfAHop) {
    for (const int p : {2, 4, 8})
        for (const double hop : {0.05, 0.1, 0.2}) {
            EXPECT_NEAR(lost_a_micro_batch("1f1b", p, hop), 2 * (p - 1) * hop / p, 1e-9);
            EXPECT_NEAR(lost_a_micro_batch("1f1b", p, hop, usual), 2 * (p - 1) * hop / p, 1e-9);
            EXPECT_NEAR(lost_a_micro_batch("zb-h2", p, hop), 0, 1e-9);
            EXPECT_NEAR(lost_a_micro_batch("afab", p, hop), 0, 1e-9);
            EXPECT_NEAR(run("afab", p, 4, equal, hop).seconds - run("afab", p, 4, equal).seconds,
                        2 * (p - 1) * hop, 1e-9);
        }
    // A rank needs no time to send to itself.
    EXPECT_NEAR(run("zbv", 1, 4, equal, 10).seconds, 12, 1e-9);
}

TEST(PipelineSimulate, StagesOfDifferentCost) {
    const Schedule schedule = make_schedule("1f1b", 2, 2);
    //     rank 0   F0 F1 . . . D0 D1          F 1, B 1, W 1
    //     rank 1      F0   D0     F1 ...      F 2, B 1.5, W 0.5
    const Costs costs{.stages = {{1, 1, 1}, {2, 1.5, 0.5}}, .update = 0.25};
    const Simulation result = simulate(schedule, costs);
    EXPECT_EQ(result.ranks[1][1].begin, 3);  // D0
    EXPECT_EQ(result.ranks[0][2].begin, 5);
    EXPECT_EQ(result.ranks[1][3].end, 9);
    EXPECT_EQ(result.seconds, 11.25);
    EXPECT_EQ(result.work, std::vector<double>({6, 8}));
    EXPECT_EQ(result.step_bubble, std::vector<double>({5, 3}));
    EXPECT_EQ(result.own_bubble, std::vector<double>({5, 0}));
}

TEST(PipelineSimulate, ActionsThatRunTogether) {
    const Schedule schedule = ScheduleReader("x", "0: F0 F1 D0 D1\n1: F0 F1+D0 D1").read();
    Costs costs = Costs::even(schedule, {1, 1, 1});
    // Each stage's F is 0.25, a transfer of 0.5, and 0.25; its D has two transfers.
    const StageTurns turns{{{0.25, 0.25}, 0.5}, {{0.25, 0.5, 0.25}, 0.5}};
    EXPECT_EQ(turns.forward.alone(), 1);
    EXPECT_EQ(turns.backward.alone(), 2);
    // b0 until 0.25, f0 until 0.5; ~b0 arrives at 0.75, then b1 until 1.25; ~f0 at 1.25, f1 until
    // 1.5; ~b1 at 1.75, b2 until 2.
    EXPECT_EQ(seconds_together(turns.backward, turns.forward), 2);
    EXPECT_EQ(seconds_together({{1, 1, 1}, 0.5}, {{1, 1}, 0.5}), 5);  // all is hidden
    costs.turns = {turns, turns};
    const Simulation result = simulate(schedule, costs);
    EXPECT_EQ(result.ranks[1][1].begin, 2);
    EXPECT_EQ(result.ranks[1][1].end, 4);
    EXPECT_EQ(result.ranks[1][2].end, 4);
    EXPECT_EQ(result.work[1], 1 + 2 + 2);
    EXPECT_EQ(result.ranks[0][2].begin, 4);  // D0 of rank 1 is ready when both have ended
    const Schedule alone = apart(schedule);
    EXPECT_EQ(simulate(alone, costs).ranks[1][1].end, 3);
    EXPECT_EQ(simulate(alone, costs).ranks[1][2].end, 5);
}

}  // namespace
}  // namespace ultrascale
