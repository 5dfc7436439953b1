// --schedule optimal: the order of F, B and W with the shortest step, for given times and given
// memory. It shows how far the rules of other schedules are from the optimum: with the memory that
// they use, ZB-H1 and ZB-H2 are often optimal; with less, or with an amount between theirs, they
// are not.
//
// It does three things in turn, until it is certain that nothing is better:
//
//     a good schedule     the best of all that are built as ZB-H1 and ZB-H2 are: each rank with a
//                         warm-up of its own, and with W as late as its memory allows
//     a bound             by conclusions without searching (task_order.h): no schedule is shorter
//     between them        an integer program (integer_program.h) for a solver (solver.h)
//
// It handles one stage a rank, backward always in two halves, and up to four ranks. Qi et al.,
// "Zero Bubble Pipeline Parallelism", 2023 (arXiv 2401.10241), section 3.1, state such a program.
#pragma once

#include <chrono>
#include <cmath>
#include <functional>

#include "../../2_schedules/schedules.h"
#include "../../2_schedules/simulate.h"
#include "solver.h"

namespace ultrascale::pipeline {

struct OptimalProblem {
    std::vector<StageCost> stages;  // one a rank
    double hop = 0;
    int micro_batches = 1;
    int room = 0;             // how many micro-batches' activations a rank can hold; 0: p
    int seconds = 60;         // the solver's time limit
    std::string solver = "";  // one of solver_names; empty: the first that is installed
};

struct OptimalSchedule {
    Schedule schedule;
    double seconds;           // of the step, simulated
    double bound;             // no schedule with this room is shorter
    bool proven;              // no schedule is shorter
    std::string solver = "";  // the solver used; empty: the bound was reached without one
    double solver_seconds = 0;
    size_t choices = 0;        // the integer program's binary variables
    std::string program = "";  // the integer program
    double rounding;           // the largest error of the times, relative to the longest

    std::string words() const {
        const std::string asked = solver.empty() ? "the bound is reached without a solver"
                                                 : fmt::format("{} decided {} orders in {:.1f} s",
                                                               solver, choices, solver_seconds);
        const std::string times =
            rounding > 1e-6
                ? fmt::format(" (for times rounded by at most {:.1f} %)", 100 * rounding)
                : "";
        return proven ? fmt::format("optimal, proven{}: {}", times, asked)
                      : fmt::format("not proven optimal, at most {:.2f} % from it{}: {}",
                                    100 * (seconds / bound - 1), times, asked);
    }
};

// Throws UserError if they are more than the search can handle.
inline void check_size_of_search(int ranks, int64_t micro_batches) {
    if (ranks > 4)
        user_error(
            "--schedule optimal: {} ranks are more than an integer program can decide; "
            "it takes up to 4",
            ranks);
    if (micro_batches > 32)
        user_error(
            "--schedule optimal: {} micro-batches are more than an integer program can "
            "decide; it takes up to 32",
            micro_batches);
}

class OptimalSearch {
public:
    explicit OptimalSearch(const OptimalProblem& problem)
        : problem_(problem), ranks_(int(problem.stages.size())) {
        if (problem_.room == 0) problem_.room = ranks_;
        check_size_of_search(ranks_, problem_.micro_batches);
        check(ranks_ >= 1 && problem_.micro_batches >= 1 && problem_.room >= 1,
              "an optimal schedule of nothing");
        to_ticks();
    }

    OptimalSchedule run() {
        OptimalSchedule best = best_of_rules();
        const int limit = ticks_of(best.schedule);
        int least = bound(limit);
        best.proven = least == limit;
        if (!best.proven) {
            const TaskOrder order = order_by(limit - 1);
            const IntegerProgram program(order, least, limit - 1);
            best.solver = problem_.solver.empty() ? installed_solver() : problem_.solver;
            if (best.solver.empty())
                user_error(
                    "--schedule optimal: needs a solver of integer programs on PATH: cbc "
                    "(Debian's coinor-cbc), glpsol (glpk-utils) or highs");
            best.program = program.text(), best.choices = program.choices();
            const auto begin = std::chrono::steady_clock::now();
            const SolverAnswer answer = solve(best.solver, best.program, problem_.seconds);
            best.solver_seconds =
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            take(answer, program, limit, least, best);
        }
        check_schedule(best.schedule, problem_.room);
        best.seconds = simulate(best.schedule, costs()).seconds;
        best.bound = std::min(least * tick_, best.seconds);
        best.rounding = rounding_;
        return best;
    }

private:
    Costs costs() const { return {.stages = problem_.stages, .hop = problem_.hop}; }

    // Converts times to multiples of a tick: a tick of which all times are multiples, if it is at
    // least a 200th of the longest time; else a 200th of it.
    void to_ticks() {
        std::vector<double> times = {problem_.hop};
        for (const auto& [f, b, w] : problem_.stages) times.insert(times.end(), {f, b, w});
        const double longest = *std::ranges::max_element(times);
        check(longest > 0, "stages that take no time");
        for (int parts = 1; parts <= 200; ++parts) {
            tick_ = longest / parts;
            const auto whole = [&](double time) {
                return std::abs(time / tick_ - std::round(time / tick_)) < 1e-6;
            };
            if (std::ranges::all_of(times, whole)) break;
        }
        const auto rounded = [&](double time) {
            const double ticks = std::round(time / tick_);
            rounding_ = std::max(rounding_, std::abs(ticks * tick_ - time) / longest);
            return int(ticks);
        };
        for (const auto& [f, b, w] : problem_.stages)
            ticks_.stages.push_back({rounded(f), rounded(b), rounded(w)});
        ticks_.hop = rounded(problem_.hop);
    }
    int ticks_of(const Schedule& schedule) const {
        Costs costs{.stages = {}, .hop = double(ticks_.hop)};
        for (const auto& [f, b, w] : ticks_.stages)
            costs.stages.push_back({double(f), double(b), double(w)});
        return int(std::lround(simulate(schedule, costs).seconds));
    }

    // Every rank's warm-up is at most two longer than that of the rank below: ZB-H1's is longer by
    // one, ZB-H2's by two.
    OptimalSchedule best_of_rules() {
        OptimalSchedule best{};
        int shortest = 0;
        std::vector<int> warmups(size_t(ranks_), 0);
        const std::function<void(int)> choose = [&](int rank) {
            if (rank >= 0) {
                const int least = rank + 1 == ranks_ ? 0 : warmups[size_t(rank) + 1];
                for (int w = least; w <= std::min(problem_.room - 1, least + 2); ++w) {
                    warmups[size_t(rank)] = w;
                    choose(rank - 1);
                }
                return;
            }
            Schedule schedule =
                empty_schedule("optimal", problem_.micro_batches, looped(ranks_, 1));
            for (size_t r = 0; r < warmups.size(); ++r)
                schedule.actions[r] = zero_bubble_actions(
                    warmups[r], problem_.room - 1 - warmups[r], problem_.micro_batches);
            const int ticks = ticks_of(schedule);
            if (best.schedule.actions.empty() || ticks < shortest)
                best.schedule = std::move(schedule), shortest = ticks;
        };
        choose(ranks_ - 1);
        return best;
    }

    TaskOrder order_by(int end) const {
        TaskOrder order(ticks_, problem_.micro_batches, problem_.room);
        order.end_by(end);
        return order;
    }
    // The first end that leads to no contradiction.
    int bound(int possible) const {
        int impossible = 0;
        while (impossible + 1 < possible) {
            const int middle = (impossible + possible) / 2;
            TaskOrder order(ticks_, problem_.micro_batches, problem_.room);
            (order.end_by(middle) ? possible : impossible) = middle;
        }
        return possible;
    }

    // Takes the solver's answer if it is better than the best schedule so far.
    void take(const SolverAnswer& answer, const IntegerProgram& program, int limit, int& least,
              OptimalSchedule& best) const {
        if (answer.status == SolverAnswer::infeasible) {
            least = limit, best.proven = true;
            return;
        }
        least = std::max(least, int(std::ceil(answer.bound - 1e-6)));
        if (answer.status == SolverAnswer::unknown) return;
        Schedule schedule = best.schedule;
        schedule.actions = program.actions(answer.values);
        const int ticks = ticks_of(schedule);
        check(ticks < limit, "the solver's schedule is not shorter");
        best.schedule = std::move(schedule);
        if (answer.status == SolverAnswer::optimal) least = ticks;
        best.proven = least == ticks;
    }

    OptimalProblem problem_;
    int ranks_;
    double tick_ = 1, rounding_ = 0;
    TickCosts ticks_;
};

// Throws UserError if there are too many ranks or micro-batches, or if a search is needed and no
// solver is installed. One rank calls it; schedule_text() carries the result to the others.
inline OptimalSchedule optimal_schedule(const OptimalProblem& problem) {
    return OptimalSearch(problem).run();
}

}  // namespace ultrascale::pipeline
