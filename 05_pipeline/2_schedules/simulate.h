// Simulates how long a schedule takes. Every rank works through its list in order, and begins an
// action as soon as the one before it has ended and its input has arrived.
//
// It computes two bubbles. A step's bubble is the time for which a rank is idle from the beginning
// of the step until the last rank has ended. A rank's own bubble is the time for which it is idle
// between its first action and its last; this is lost even if no barrier ends the step
// (5_post_validation.h).
#pragma once

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "dependencies.h"
#include "together.h"

namespace ultrascale::pipeline {

// The times of a stage for one micro-batch, in seconds or any other unit.
struct StageCost {
    double forward, backward_input, backward_weight;
    double of(ActionKind kind) const {
        return kind == ActionKind::forward           ? forward
               : kind == ActionKind::backward_input  ? backward_input
               : kind == ActionKind::backward_weight ? backward_weight
                                                     : backward_input + backward_weight;
    }
};
struct Costs {
    std::vector<StageCost> stages;
    double hop = 0;  // from the end of an action until another rank has its result
    // Used instead, if given: how long each message occupies the link from rank r to r + 1, or
    // back; the last link is between the last rank and the first. A link carries one message after
    // the other.
    std::vector<double> links = {};
    double update = 0;  // after the last action
    // Each stage's turns, if its passes communicate. Otherwise two actions that run together take
    // as long as one after the other.
    std::vector<StageTurns> turns = {};

    // A rank's share of the model's F, B and W, spread evenly over the stages of a schedule.
    static Costs even(const Schedule& schedule, const StageCost& rank_cost, double hop = 0) {
        const double share = double(schedule.ranks()) / schedule.stages;
        return {.stages = std::vector<StageCost>(
                    size_t(schedule.stages),
                    {rank_cost.forward * share, rank_cost.backward_input * share,
                     rank_cost.backward_weight * share}),
                .hop = hop};
    }
};

// An action as it was simulated, or as it ran.
struct TimedAction {
    int rank;
    Action action;
    double begin, end;
};

struct Simulation {
    std::vector<std::vector<TimedAction>> ranks;  // in order
    double seconds = 0;                           // the step's, with the update
    // For each rank: the time for which it works, the time for which it is idle in the step and
    // between its first and last action, and the most micro-batches whose activations it holds.
    std::vector<double> work, step_bubble, own_bubble, peak_in_flight;

    double worst_own_bubble() const { return *std::ranges::max_element(own_bubble); }
    double peak() const { return *std::ranges::max_element(peak_in_flight); }
    // The average over ranks. (All ranks have the same bubble if their stages cost the same.)
    double mean_step_bubble() const {
        return std::accumulate(step_bubble.begin(), step_bubble.end(), 0.0) /
               double(step_bubble.size());
    }
};

class Simulator {
public:
    // check_schedule() must accept the schedule.
    Simulator(const Schedule& schedule, const Costs& costs)
        : schedule_(schedule), costs_(costs), needs_(schedule) {
        check(int(costs.stages.size()) == schedule.stages, "a cost for each stage");
    }

    // `begin`: when each rank begins. Empty: all begin at 0.
    Simulation run(std::vector<double> begin = {}) {
        const size_t ranks = size_t(schedule_.ranks());
        begin.resize(ranks, 0.0);
        free_ = begin;
        done_.assign(2 * size_t(schedule_.micro_batches) * size_t(schedule_.stages), not_yet);
        arrived_ = done_;
        link_free_.assign(2 * costs_.links.size(), 0.0);
        Simulation result;
        result.ranks.resize(ranks);
        for (bool progress = true; progress;) {
            progress = false;
            for (size_t r = 0; r < ranks; ++r)
                while (run_next(int(r), result.ranks[r])) progress = true;
        }
        for (size_t r = 0; r < ranks; ++r)
            check(result.ranks[r].size() == schedule_.actions[r].size(), "the schedule hangs");
        summarize(result, *std::ranges::min_element(begin));
        return result;
    }

private:
    static constexpr double not_yet = -1;

    // When the result was ready at the rank that computed it.
    double& done(bool backward, int micro_batch, int stage) {
        return done_[(size_t(micro_batch) * size_t(schedule_.stages) + size_t(stage)) * 2 +
                     backward];
    }
    // When a rank has an action's input; not_yet if the input has not been computed.
    double arrival(int rank, const Action& action) {
        const auto input = needs_.input(rank, action);
        if (!input) return 0;
        const double ready = done(input->backward, input->micro_batch, input->stage);
        if (ready == not_yet || input->rank == rank) return ready;
        if (costs_.links.empty()) return ready + costs_.hop;
        double& at = arrived_[size_t(&done(input->backward, input->micro_batch, input->stage) -
                                     done_.data())];
        if (at == not_yet) {
            const int from = input->rank, low = std::min(from, rank), high = std::max(from, rank);
            const size_t link = size_t(high == low + 1 ? low : high);
            double& free = link_free_[2 * link + (from == low)];
            at = free = std::max(ready, free) + costs_.links[link];
        }
        return at;
    }
    // Runs the next action of a rank, or two that run together, if it can begin.
    bool run_next(int rank, std::vector<TimedAction>& ran) {
        const std::vector<Action>& actions = schedule_.actions[size_t(rank)];
        if (ran.size() == actions.size()) return false;
        const Action* next = &actions[ran.size()];
        const int count = next->with_next ? 2 : 1;
        double begin = free_[size_t(rank)], length = 0;
        for (int i = 0; i < count; ++i) {
            const double here = arrival(rank, next[i]);
            if (here == not_yet) return false;
            begin = std::max(begin, here);
            length += costs_.stages[size_t(needs_.chunk(rank, next[i]).stage)].of(next[i].kind);
        }
        if (count == 2 && !costs_.turns.empty()) length = seconds_together(rank, next);
        const double end = begin + length;
        free_[size_t(rank)] = end;
        for (int i = 0; i < count; ++i) {
            ran.push_back({rank, next[i], begin, end});
            if (next[i].kind != ActionKind::backward_weight)
                done(sends_back(next[i].kind), next[i].micro_batch,
                     needs_.chunk(rank, next[i]).stage) = end;
        }
        return true;
    }
    // A forward and a backward, which begins.
    double seconds_together(int rank, const Action* pair) const {
        const int forward = pair[0].kind == ActionKind::forward ? 0 : 1;
        const auto of = [&](int i) -> const StageTurns& {
            return costs_.turns[size_t(needs_.chunk(rank, pair[i]).stage)];
        };
        return pipeline::seconds_together(of(1 - forward).backward, of(forward).forward);
    }
    void summarize(Simulation& result, double begin) const {
        double last = begin;
        for (const double end : free_) last = std::max(last, end);
        result.seconds = last + costs_.update - begin;
        for (size_t r = 0; r < result.ranks.size(); ++r) {
            const std::vector<TimedAction>& ran = result.ranks[r];
            double work = 0, until = ran.empty() ? 0 : ran.front().begin;
            for (const TimedAction& timed : ran) {
                work += std::max(timed.end - std::max(timed.begin, until), 0.0);
                until = std::max(until, timed.end);
            }
            result.work.push_back(work);
            result.step_bubble.push_back(last - begin - work);
            result.own_bubble.push_back(ran.empty() ? 0
                                                    : ran.back().end - ran.front().begin - work);
            result.peak_in_flight.push_back(peak_in_flight(schedule_, int(r)));
        }
    }

    const Schedule& schedule_;
    const Costs& costs_;
    Dependencies needs_;
    std::vector<double> free_;  // when each rank became idle
    std::vector<double> done_;  // by (micro-batch, stage, pass)
    // With links: when a result was at the rank that needs it, and when each link became idle in
    // each direction.
    std::vector<double> arrived_, link_free_;
};

inline Simulation simulate(const Schedule& schedule, const Costs& costs) {
    return Simulator(schedule, costs).run();
}

}  // namespace ultrascale::pipeline
