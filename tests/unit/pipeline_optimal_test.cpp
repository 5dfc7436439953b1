// 05_pipeline: the shortest schedule, compared with one that is found by trying all.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "05_pipeline/lab/optimal/optimal.h"

namespace ultrascale {
using namespace ultrascale::pipeline;
namespace {

// Lists all orders of F, B and W on one rank, each with its micro-batches in order.
void all_lists(int m, int room, std::vector<Action>& list, std::vector<std::vector<Action>>& all) {
    int f = 0, b = 0, w = 0;
    for (const Action& action : list) {
        f += action.kind == ActionKind::forward;
        b += action.kind == ActionKind::backward_input;
        w += action.kind == ActionKind::backward_weight;
    }
    if (w == m) return all.push_back(list);
    const auto add = [&](ActionKind kind, int micro_batch) {
        list.push_back({kind, micro_batch});
        all_lists(m, room, list, all);
        list.pop_back();
    };
    if (f < m && f - w < room) add(ActionKind::forward, f);
    if (b < f) add(ActionKind::backward_input, b);
    if (w < b) add(ActionKind::backward_weight, w);
}

double shortest_of_all(const OptimalProblem& problem) {
    std::vector<Action> list;
    std::vector<std::vector<Action>> lists;
    all_lists(problem.micro_batches, problem.room, list, lists);
    const size_t ranks = problem.stages.size();
    Schedule schedule = empty_schedule("any", problem.micro_batches, looped(int(ranks), 1));
    const Costs costs{.stages = problem.stages, .hop = problem.hop};
    double shortest = 1e9;
    const std::function<void(size_t)> choose = [&](size_t rank) {
        for (const auto& rank_actions : lists) {
            schedule.actions[rank] = rank_actions;
            if (rank + 1 < ranks) {
                choose(rank + 1);
                continue;
            }
            try {
                check_schedule(schedule);
            } catch (const UserError&) {
                continue;  // it hangs
            }
            shortest = std::min(shortest, simulate(schedule, costs).seconds);
        }
    };
    choose(0);
    return shortest;
}

TEST(PipelineOptimal, NoneOfAllSchedulesIsShorter) {
    std::vector<OptimalProblem> problems;
    for (const double hop : {0.0, 2.0}) {
        for (const int room : {1, 2, 3}) {
            problems.push_back({{{2, 3, 1}, {4, 1, 2}}, hop, 3, room});
            problems.push_back({{{3, 1, 4}, {1, 5, 2}}, hop, 3, room});
            problems.push_back({{{1, 1.3, 0.7}, {1.5, 1.9, 1}}, hop, 3, room});
        }
        problems.push_back({{{1, 1, 2}, {1, 1, 2}, {1, 1, 2}}, hop, 3, 2});
        problems.push_back({{{10, 13, 7}, {10, 13, 7}, {13, 16, 9}}, hop, 3, 2});
        problems.push_back({{{1, 1, 1}, {2, 1, 1}}, 1 + hop, 4, 2});
    }
    int searched = 0;
    for (const OptimalProblem& problem : problems) {
        OptimalSchedule best;
        try {
            best = optimal_schedule(problem);
        } catch (const UserError& error) {
            ASSERT_EQ(installed_solver(), "") << error.what();
            GTEST_SKIP() << "no solver of integer programs is installed";
        }
        EXPECT_TRUE(best.proven);
        EXPECT_NEAR(best.seconds, shortest_of_all(problem), 1e-9) << best.words();
        searched += !best.solver.empty();
    }
    EXPECT_GT(searched, 0);  // not only where the bound is enough
}

TEST(PipelineOptimal, FindsOutHowGoodTheRulesAre) {
    const StageCost usual{10, 13, 7};
    const auto best = [&](int room) {
        return optimal_schedule({std::vector<StageCost>(4, usual), 0, 8, room});
    };
    const auto rule = [&](std::string_view name) {
        const Schedule schedule = make_schedule(name, 4, 8);
        return simulate(schedule, Costs::even(schedule, usual)).seconds;
    };
    // With their own memory H1 and H2 are optimal, which is proven without a search.
    const OptimalSchedule as_h1 = best(4), as_h2 = best(7);
    EXPECT_TRUE(as_h1.proven && as_h2.proven);
    EXPECT_EQ(as_h1.solver + as_h2.solver, "");
    EXPECT_EQ(as_h1.seconds, rule("zb-h1"));
    EXPECT_EQ(as_h2.seconds, rule("zb-h2"));
    if (installed_solver().empty()) GTEST_SKIP() << "no solver of integer programs is installed";
    const OptimalSchedule smaller = best(3);
    EXPECT_TRUE(smaller.proven);
    EXPECT_EQ(smaller.seconds, 334);  // the best warm-ups alone: 410
    EXPECT_LE(peak_in_flight(smaller.schedule, 0), 3);
    EXPECT_NE(smaller.program.find("Minimize"), std::string::npos);
}

TEST(PipelineOptimal, SolversAgree) {
    int installed = 0;
    for (const std::string solver : solver_names) {
        const char* path = std::getenv("PATH");
        ASSERT_NE(path, nullptr);
        if (std::system(("command -v " + solver + " >/dev/null").c_str()) != 0) continue;
        OptimalProblem problem{std::vector<StageCost>(3, {10, 13, 7}), 1, 6, 2};
        problem.solver = solver;
        const OptimalSchedule best = optimal_schedule(problem);
        EXPECT_EQ(best.solver, solver);
        EXPECT_TRUE(best.proven) << best.words();
        EXPECT_NEAR(best.seconds, 275, 1e-9);
        ++installed;
    }
    if (installed == 0) GTEST_SKIP() << "no solver of integer programs is installed";
}

TEST(PipelineOptimal, RefusesInOneLine) {
    const auto refused = [](int ranks, int m, int room) -> std::string {
        try {
            optimal_schedule({std::vector<StageCost>(size_t(ranks), {10, 13, 7}), 0, m, room});
        } catch (const UserError& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_NE(refused(5, 8, 5).find("5 ranks"), std::string::npos);
    EXPECT_NE(refused(2, 33, 2).find("33 micro-batches"), std::string::npos);
    const std::string path = std::getenv("PATH");
    setenv("PATH", "/nowhere", 1);
    const std::string without = refused(4, 8, 3);
    setenv("PATH", path.c_str(), 1);
    for (const char* package : {"coinor-cbc", "glpk-utils", "highs"})
        EXPECT_NE(without.find(package), std::string::npos) << without;
}

TEST(PipelineOptimal, ReadsWhatSolversWrite) {
    SolverAnswer answer = solvers::read_cbc(
        "Stopped on time - objective value 37.0\n  0 step  37  1\n** 1 s0  0  0\n  7 y1_2 1 0\n",
        "Result - Stopped on time limit\nLower bound:                    36.000\n");
    EXPECT_EQ(answer.status, SolverAnswer::feasible);
    EXPECT_EQ(answer.bound, 36);
    EXPECT_EQ(answer.values, (std::map<std::string, double>{{"step", 37}, {"s0", 0}, {"y1_2", 1}}));
    EXPECT_EQ(solvers::read_cbc("Infeasible - objective value 0\n", "").status,
              SolverAnswer::infeasible);
    EXPECT_EQ(
        solvers::read_cbc("Stopped on time (no integer solution - continuous used)\n", "").status,
        SolverAnswer::unknown);

    answer = solvers::read_glpsol(
        "Status:     INTEGER NON-OPTIMAL\n\n   No. Column name       Activity     Lower bound\n"
        "------ ------------    -------------\n     1 step         *             37       36\n"
        "     2 s0                          4        0\n\nInteger feasibility conditions:\n",
        "");
    EXPECT_EQ(answer.status, SolverAnswer::feasible);
    EXPECT_EQ(answer.values.at("step"), 37);
    EXPECT_EQ(answer.values.at("s0"), 4);
    EXPECT_EQ(solvers::read_glpsol("", "PROBLEM HAS NO PRIMAL FEASIBLE SOLUTION").status,
              SolverAnswer::infeasible);

    answer = solvers::read_highs(
        "Model status\nOptimal\n\n# Primal solution values\nFeasible\nObjective 36\n# Columns 2\n"
        "step 36\ns0 2.5\n# Rows 1\nr0 7\n",
        "  Dual bound        36\n");
    EXPECT_EQ(answer.status, SolverAnswer::optimal);
    EXPECT_EQ(answer.bound, 36);
    EXPECT_EQ(answer.values, (std::map<std::string, double>{{"step", 36}, {"s0", 2.5}}));
    EXPECT_EQ(solvers::read_highs("Model status\nTime limit reached\n\n# Primal solution values\n"
                                  "None\n",
                                  "")
                  .status,
              SolverAnswer::unknown);
}

}  // namespace
}  // namespace ultrascale
