// The report's section about time: the two bubbles of chapter 05, simulated and measured, the time
// of a message compared with the work, and a drawing of the schedule.
//
//     the step's bubble    a rank is idle from the first rank's first F until the last one is done
//     a rank's own bubble  idle between its own first F and its last D or W: all that is left if no
//                          barrier ends the step (--post-validation; then a step lasts until the
//                          next one begins)
#pragma once

#include <thread>

#include "../3_cut.h"
#include "core/device.h"
#include "lab/report/report.h"
#include "memory_walk.h"
#include "pictures.h"
#include "pipeline.h"
#include "timeline.h"

namespace ultrascale::pipeline {

// The part of a run's report about its time. Rank 0 prints.
struct Bubbles {
    const Schedule& schedule;
    const std::vector<Stage>& stages;
    const Costs& costs;  // the costs with which it was simulated
    Simulation simulated, measured;
    bool pretended;

    void print_table(Report& report) const {
        print(fmt::format("\n{:<44} {:>10} {:>10}", "bubbles in a step, of the median length",
                          "simulated", "measured"));
        const auto line = [&](const char* name, const char* key, double want, double got) {
            print(fmt::format("  {:<42} {:>10.2f} {:>10.2f} ms", name, want * 1e3, got * 1e3));
            report.value("bubbles", fmt::format("{}_simulated", key), want);
            report.value("bubbles", key, got);
        };
        line("step", "step", simulated.seconds, measured.seconds);
        line("the step's bubble, mean of the ranks", "of_step", simulated.mean_step_bubble(),
             measured.mean_step_bubble());
        line("a rank's own bubble, the longest", "own", simulated.worst_own_bubble(),
             measured.worst_own_bubble());
        print(fmt::format("  {:<42} {:>10.1f} {:>10.1f} %", "the step's bubble, beside the work",
                          share(simulated), share(measured)));
        report.value("bubbles", "hop", costs.hop);
        print(fmt::format("  simulated: each stage's F, B and W, and a hop of {:.3g} ms, as {}",
                          costs.hop * 1e3, pretended ? "pretended" : "measured (medians)"));
        if (const int cores = int(std::thread::hardware_concurrency());
            !pretended && !device_is_gpu() && ranks_on_this_node() > cores)
            print(
                fmt::format("  {} ranks share {} processors and wait for these, too; --pretend "
                            "shows the schedule alone",
                            ranks_on_this_node(), cores));
        if (report.full()) print_ranks();
    }

    // Prints each stage's F, B and W (F and D if backward is not split), and each rank's bubbles.
    void print_ranks() const {
        const bool whole = std::ranges::all_of(
            costs.stages, [](const StageCost& cost) { return cost.backward_weight == 0; });
        print(fmt::format("\nstage  rank  layers              F ms     {} ms{}", whole ? 'D' : 'B',
                          whole ? "" : "     W ms"));
        const auto locations = schedule.locations();
        for (size_t s = 0; s < stages.size(); ++s) {
            const StageCost& cost = costs.stages[s];
            std::string ranks = std::to_string(locations[0][s].rank);
            if (locations.size() > 1) ranks += fmt::format(",{}", locations[1][s].rank);
            const std::string what = fmt::format(
                "{}{} to {}{}", stages[s].embedding ? "embedding, " : "", stages[s].first_layer,
                stages[s].last_layer - 1, stages[s].head ? ", head" : "");
            print(fmt::format("{:>5}  {:>4}  {:<15} {:>8.2f} {:>8.2f}{}", s, ranks, what,
                              cost.forward * 1e3, cost.backward_input * 1e3,
                              whole ? "" : fmt::format(" {:>8.2f}", cost.backward_weight * 1e3)));
        }
        print("\n                 step's bubble, ms     own bubble, ms     micro-batches");
        print("rank  work, ms  simul.  measured   simul.  measured       in flight");
        for (size_t r = 0; r < measured.ranks.size(); ++r)
            print(fmt::format("{:>4}  {:>8.2f} {:>7.2f} {:>9.2f} {:>8.2f} {:>9.2f} {:>15.4g}", r,
                              measured.work[r] * 1e3, simulated.step_bubble[r] * 1e3,
                              measured.step_bubble[r] * 1e3, simulated.own_bubble[r] * 1e3,
                              measured.own_bubble[r] * 1e3, measured.peak_in_flight[r]));
    }

    // Draws the schedule as it ran; with few ranks, or if `both`, the simulated schedule stands
    // above it.
    void draw(bool both) const {
        const double until = std::max(last_end(simulated) - first_begin(simulated),
                                      last_end(measured) - first_begin(measured));
        const auto timeline = [&](const char* title, const Simulation& of) {
            print(fmt::format("\n{}", title));
            for (const std::string& line : draw_timeline(of, until)) print(line);
        };
        if (both || schedule.ranks() <= 4) timeline("as simulated", simulated);
        timeline("as it ran", measured);
        print(timeline_legend(schedule, until));
    }

    // The bubble in percent of a rank's work, averaged over the ranks.
    static double share(const Simulation& s) {
        const double work =
            std::accumulate(s.work.begin(), s.work.end(), 0.0) / double(s.work.size());
        return 100 * s.mean_step_bubble() / work;
    }
};

// Prints whether a message is hidden under the work of the stage that waits for it. The playbook's
// appendix (A3) divides the time for which seq * mbs * h elements travel by that of the next
// stage's 32 h^2 FLOP per token and layer, so
//
//     ratio = FLOP/s / (32 h * layers of the next stage * elements/s)
//
// The formula is for a model of 16 h^2 weights a layer. The measured ratio is that of a hop to the
// F of the fastest stage.
inline void print_message_ratio(Report& report, const StepShape& shape,
                                const std::vector<Stage>& stages, const Costs& costs) {
    const double tokens = double(shape.micro_batch) * double(shape.seq),
                 h = double(shape.config.hidden);
    double fastest = std::numeric_limits<double>::infinity(), layers = 1;
    for (size_t s = 0; s < stages.size(); ++s)
        if (costs.stages[s].forward < fastest)
            fastest = costs.stages[s].forward,
            layers = double(stages[s].last_layer - stages[s].first_layer);
    if (!(fastest > 0) || !(costs.hop > 0)) return;
    const double flops = tokens * stage_cost(shape, stages.front()).forward /
                         costs.stages.front().forward,
                 elements = tokens * h / costs.hop, formula = flops / (32 * h * layers * elements);
    print(fmt::format(
        "  a hop takes {:.3g} of the fastest stage's F; by the playbook's formula (A3) {:.3g}",
        costs.hop / fastest, formula));
    report.value("bubbles", "hop_over_forward", costs.hop / fastest);
    report.value("bubbles", "hop_over_forward_by_formula", formula);
}

// The simulation's times for F, B, W and hop: the pretended ones, or the measured ones.
inline Costs pretended_costs(const Schedule& schedule, const Pretend& pretend) {
    return Costs::even(schedule, {pretend.forward, pretend.backward_input, pretend.backward_weight},
                       pretend.hop);
}
inline Costs costs_of(const Timeline& timeline, const Schedule& schedule, const Pretend& pretend) {
    const Costs measured = timeline.costs();
    if (!pretend.on()) return measured;
    Costs costs = pretended_costs(schedule, pretend);
    costs.update = measured.update;
    return costs;
}

// Pretended times are right only if computing takes a small part of them.
inline void print_computed(Report& report, const Executor& executor) {
    const double share = largest_of_ranks(Communicator::world(), executor.computed_share());
    print(fmt::format("  a rank computed for at most {:.1f} % of the pretended time{}", 100 * share,
                      share > 0.05 ? ": too much; pretend longer times" : ""));
    report.value("bubbles", "computed_share", share);
}

// Prints the whole section, after a run of the executor. With --svg it draws a picture,
// schedule.svg.
inline void report_time(Report& report, const Pipeline& pipeline, const Options& options,
                        const RunAs& as) {
    const Schedule& schedule = pipeline.schedule;
    const bool has_first = options.steps <= int64_t(Executor::kept_steps);
    const Timeline timeline(schedule, pipeline.pp(), *pipeline.executor, has_first,
                            as.post_validation);
    const Costs costs = costs_of(timeline, schedule, as.pretend);
    const Bubbles bubbles{schedule,
                          pipeline.cut,
                          costs,
                          timeline.no_barrier() ? simulate_without_barrier(schedule, costs)
                                                : simulate(schedule, costs),
                          timeline.median_step(),
                          as.pretend.on()};
    bubbles.print_table(report);
    if (!as.pretend.on()) print_message_ratio(report, pipeline.shape, pipeline.cut, costs);
    bubbles.draw(report.full());
    draw_schedule(options.svg, "schedule.svg", schedule, bubbles.simulated, bubbles.measured);
    if (as.pretend.on()) print_computed(report, *pipeline.executor);
}

}  // namespace ultrascale::pipeline
