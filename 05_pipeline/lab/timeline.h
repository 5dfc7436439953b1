// When the actions of a step ran on all ranks, and how long they took. Compared with a simulation
// of the same F, B and W, this shows the cost of the executor, the messages and uneven stages.
#pragma once

#include <map>
#include <vector>

#include "../4_executor/executor.h"
#include "drawing.h"
#include "lab/report/median_seconds.h"
#include "lab/verify/whole_values.h"

namespace ultrascale::pipeline {

// Lets a step last this long: without a barrier, until the next one begins. A rank that does not
// work meanwhile is idle.
inline void last_until(Simulation& step, double seconds) {
    step.seconds = seconds;
    for (size_t r = 0; r < step.ranks.size(); ++r) step.step_bubble[r] = seconds - step.work[r];
}

// One of many steps without a barrier: every rank begins the next one as soon as it has updated.
inline Simulation simulate_without_barrier(const Schedule& schedule, const Costs& costs) {
    Simulator simulator(schedule, costs);
    Simulation step = simulator.run();
    for (int again = 0; again < 4; ++again) {
        std::vector<double> begin;
        for (const auto& ran : step.ranks) begin.push_back(ran.back().end + costs.update);
        Simulation next = simulator.run(begin);
        last_until(next, first_begin(next) - first_begin(step));
        step = std::move(next);
    }
    return step;
}

class Timeline {
public:
    // All ranks of `pp` call it, after at least one step. Reads the executor's last steps; a run's
    // first step is left out if there are others. no_barrier: steps follow each other as with
    // post-validation, and a step lasts until the next one begins.
    Timeline(const Schedule& schedule, const Communicator& pp, const Executor& executor,
             bool has_first_step, bool no_barrier = false)
        : schedule_(schedule), no_barrier_(no_barrier) {
        const double later = pp.clock_offsets()[size_t(pp.rank())];
        std::vector<double> mine;  // for each step: begins, ends, when it had updated
        const auto& times = executor.times();
        for (size_t s = has_first_step && times.size() > 1; s < times.size(); ++s) {
            for (const Timestamp& t : times[s].begins) mine.push_back(t.seconds() + later);
            for (const Timestamp& t : times[s].ends) mine.push_back(t.seconds() + later);
            mine.push_back(times[s].updated.seconds() + later);
        }
        std::vector<std::vector<double>> times_by_rank;
        for (const std::string& rank_times : pp.gather_strings(bytes_of(mine)))
            times_by_rank.push_back(from_bytes<double>(rank_times));
        const size_t steps = mine.size() / (2 * schedule.actions[size_t(pp.rank())].size() + 1);
        for (size_t s = 0; s < steps; ++s) steps_.push_back(step(times_by_rank, s));
        if (!no_barrier) return;
        for (size_t s = 0; s + 1 < steps; ++s)
            last_until(steps_[s], first_begin(steps_[s + 1]) - first_begin(steps_[s]));
        if (steps > 1) steps_.pop_back();
    }

    bool no_barrier() const { return no_barrier_; }
    const Simulation& median_step() const {
        std::vector<size_t> order(steps_.size());
        std::iota(order.begin(), order.end(), size_t(0));
        std::ranges::sort(order, {}, [&](size_t s) { return steps_[s].seconds; });
        return steps_[order[order.size() / 2]];
    }

    // The (median) times of each stage, a message and the update: the input of simulate(). If a
    // stage's backward is never split, all of it counts as B.
    Costs costs() const {
        std::map<std::pair<int, ActionKind>, std::vector<double>> seconds;  // by stage
        std::vector<double> hops;
        for (const Simulation& step : steps_) {
            std::map<std::tuple<int, int, bool>, double> ready;  // micro-batch, stage, backward
            for (const auto& rank_actions : step.ranks)
                for (const TimedAction& t : rank_actions) {
                    seconds[{stage_of(t), t.action.kind}].push_back(t.end - t.begin);
                    if (t.action.kind != ActionKind::backward_weight)
                        ready[{t.action.micro_batch, stage_of(t), sends_back(t.action.kind)}] =
                            t.end;
                }
            add_hops(step, ready, hops);
        }
        Costs costs{.hop = hops.empty() ? 0 : std::max(median(hops), 0.0),
                    .update = median(updates_)};
        for (int s = 0; s < schedule_.stages; ++s) {
            const auto of = [&](ActionKind kind) {
                const auto found = seconds.find({s, kind});
                return found == seconds.end() ? -1 : median(found->second);
            };
            const double F = of(ActionKind::forward), D = of(ActionKind::backward),
                         B = of(ActionKind::backward_input), W = of(ActionKind::backward_weight);
            costs.stages.push_back(B < 0 ? StageCost{F, D, 0} : StageCost{F, B, W});
        }
        return costs;
    }

private:
    int stage_of(const TimedAction& t) const {
        return schedule_.chunks[size_t(t.rank)][size_t(t.action.chunk)].stage;
    }
    // Step s, from the times that the ranks exchanged.
    Simulation step(const std::vector<std::vector<double>>& times_by_rank, size_t s) {
        Simulation result;
        std::vector<double> updated;
        for (size_t r = 0; r < times_by_rank.size(); ++r) {
            const auto& actions = schedule_.actions[r];
            const double* const begins = times_by_rank[r].data() + s * (2 * actions.size() + 1);
            const double* const ends = begins + actions.size();
            std::vector<TimedAction>& ran = result.ranks.emplace_back();
            for (size_t i = 0; i < actions.size(); ++i)
                ran.push_back({int(r), actions[i], begins[i], ends[i]});
            updated.push_back(ends[actions.size()]);
        }
        const double first = first_begin(result), last = last_end(result);
        result.seconds = std::ranges::max(updated) - first;
        for (size_t r = 0; r < updated.size() && no_barrier_; ++r)
            updates_.push_back(updated[r] - result.ranks[r].back().end);
        if (!no_barrier_) updates_.push_back(std::ranges::max(updated) - last);
        for (size_t r = 0; r < result.ranks.size(); ++r) {
            double work = 0;
            for (const TimedAction& t : result.ranks[r]) work += t.end - t.begin;
            result.work.push_back(work);
            result.step_bubble.push_back(last - first - work);
            result.own_bubble.push_back(result.ranks[r].back().end - result.ranks[r].front().begin -
                                        work);
            result.peak_in_flight.push_back(peak_in_flight(schedule_, int(r)));
        }
        return result;
    }

    // Adds the times of messages for which a rank was already waiting when they were sent.
    void add_hops(const Simulation& step, std::map<std::tuple<int, int, bool>, double>& ready,
                  std::vector<double>& hops) const {
        const Dependencies needs(schedule_);
        for (const auto& rank_actions : step.ranks)
            for (size_t i = 0; i < rank_actions.size(); ++i) {
                const auto input = needs.input(rank_actions[i].rank, rank_actions[i].action);
                if (!input || input->rank == rank_actions[i].rank) continue;
                const double sent = ready.at({input->micro_batch, input->stage, input->backward}),
                             free = i > 0 ? rank_actions[i - 1].end : 0;
                if (free < sent) hops.push_back(rank_actions[i].begin - sent);
            }
    }

    const Schedule& schedule_;
    bool no_barrier_;
    std::vector<Simulation> steps_;
    std::vector<double> updates_;  // seconds
};

}  // namespace ultrascale::pipeline
