// --compare: runs a few steps with every schedule that accepts these ranks and micro-batches, and
// prints one table: time, both bubbles, the activations of the rank that holds the most, and
// whether the loss is the same.
#pragma once

#include "../2_schedules/schedules.h"
#include "bubbles.h"
#include "lab/measure/measure.h"
#include "predict.h"

namespace ultrascale::pipeline {

struct Compared {
    std::string name;
    Measured measured;
    Costs costs;
    std::optional<Simulation> simulated, ran;  // empty for the plain loop, which records no actions
    double activations = 0, in_flight = 0;     // a rank's most, bytes and micro-batches
    double loss;
    bool as_predicted;
};

inline void print_row(Report& report, const Compared& c) {
    const std::string end = fmt::format("{:>11} {:>7.4g}{}", format_bytes(c.activations),
                                        c.in_flight, c.as_predicted ? "" : "   NOT as predicted");
    if (!c.ran) {
        print(fmt::format("  {:<14} {:>9} {:>9.2f} {:>9} {:>9} {:>9} {}", c.name, "-",
                          c.measured.step_seconds * 1e3, "-", "-", "-", end));
        report.row({{"schedule", c.name},
                    {"step_ms", c.measured.step_seconds * 1e3},
                    {"peak_activation_bytes", std::llround(c.activations)},
                    {"in_flight", c.in_flight},
                    {"loss", c.loss},
                    {"as_predicted", c.as_predicted}});
        return;
    }
    print(fmt::format("  {:<14} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {}", c.name,
                      c.simulated->seconds * 1e3, c.measured.step_seconds * 1e3,
                      c.simulated->mean_step_bubble() * 1e3, c.ran->mean_step_bubble() * 1e3,
                      c.ran->worst_own_bubble() * 1e3, end));
    report.row({{"schedule", c.name},
                {"step_ms_simulated", c.simulated->seconds * 1e3},
                {"step_ms", c.measured.step_seconds * 1e3},
                {"step_bubble_ms_simulated", c.simulated->mean_step_bubble() * 1e3},
                {"step_bubble_ms", c.ran->mean_step_bubble() * 1e3},
                {"own_bubble_ms_simulated", c.simulated->worst_own_bubble() * 1e3},
                {"own_bubble_ms", c.ran->worst_own_bubble() * 1e3},
                {"peak_activation_bytes", std::llround(c.activations)},
                {"in_flight", c.in_flight},
                {"loss", c.loss},
                {"as_predicted", c.as_predicted}});
}

// Runs a few steps with one schedule. All ranks call it.
inline Compared run_one(const Options& options, const StepShape& shape, const Schedule& schedule,
                        const std::vector<Stage>& stages, const RunAs& as, const DataLoader& loader,
                        const TrainStep& train_step) {
    const Communicator& world = Communicator::world();
    Pipeline pipeline(shape, schedule, stages, as);
    const Prediction predicted = predict(pipeline);
    if (!on_all_ranks(world, predicted.memory.total() <= memory_limit()))
        user_error("it does not fit in {}", format_bytes(double(memory_limit())));
    pipeline.allocate(options.dtype, options.grad_dtype());
    PlainUpdater optimizer(pipeline.parameters(), options, &pipeline.mesh);
    optimizer.start();
    const int dp = pipeline.dp().size();
    Compared c{.name = schedule.name};
    c.measured = measure(
        loader, {.micro_batch = options.micro_batch, .count = dp, .replica = pipeline.dp().rank()},
        sequences_of_step(options, dp), options.steps, [&](Step& step) {
            step.on_finish = [&](double loss, double) { c.loss = loss; };
            train_step(step, pipeline, optimizer);
        });
    const double peak = double(memory_peak_by_category()[int(Memory::activation)]);
    c.as_predicted = on_all_ranks(
        world, counted_as_predicted(predicted.communication, c.measured.steps, c.measured.counts) &&
                   peak_as_predicted(predicted.memory.peak_activations, int64_t(peak)));
    c.activations = largest_of_ranks(world, peak);
    for (int rank = 0; rank < schedule.ranks(); ++rank)
        c.in_flight = std::max(c.in_flight, peak_in_flight(schedule, rank));
    if (as.plain) return c;
    const Timeline timeline(schedule, pipeline.pp(), *pipeline.executor, false);
    c.costs = costs_of(timeline, schedule, as.pretend);
    c.simulated = simulate(schedule, c.costs), c.ran = timeline.median_step();
    return c;
}

// The schedule of this name, with those sizes that it accepts, as this chapter runs it.
inline Schedule schedule_with(const std::string& name, int ranks, int micro_batches,
                              const ScheduleOptions& sizes) {
    const ScheduleKind& kind = schedule_kind(name);
    return apart(make_schedule(name, ranks, micro_batches,
                               {.chunks = kind.takes_chunks ? sizes.chunks : 0,
                                .group = kind.takes_group ? sizes.group : 0}));
}

// Returns false if a schedule's memory or messages differ from their prediction, or its loss from
// the first schedule's. All ranks call it; rank 0 prints.
inline bool compare_schedules(const Options& options, int pp, const ScheduleOptions& sizes,
                              const std::string& split, const Pretend& pretend,
                              const StepShape& shape, const TrainStep& train_step) {
    const TokenFile file(options.data_path(), shape.config.vocab);
    const DataLoader loader(file, data_options(options, shape));
    const int64_t m = options.grad_accum;
    print(fmt::format("pp {} x dp {}; {:.3f} M parameters in {}; {} of {} x {} tokens", pp,
                      Communicator::world().size() / pp,
                      double(parameter_count(shape.config)) / 1e6, dtype_name(shape.model.dtype),
                      format_count(m, "micro-batch"), options.micro_batch, shape.seq));
    print(fmt::format("  {:<14} {:^19} {:^19} {:>9} {:^19}", "", "step, ms", "its bubble, ms",
                      "own", "most activations"));
    print(fmt::format("  {:<14} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11} {:>7}", "", "simulated",
                      "measured", "simulated", "measured", "bubble", "held", "of"));
    Report report("05_pipeline", options, shape, 0);
    bool ok = true;
    double first_loss = 0, apart = 0;
    std::vector<std::string> left_out;
    std::vector<std::string> names = schedule_names();
    if (!pretend.on()) names.insert(names.begin(), "plain");  // it cannot pretend
    for (const std::string& name : names) {
        std::optional<Compared> c;
        try {
            const bool plain = name == "plain";
            const Schedule schedule =
                plain ? plain_schedule(pp, int(m)) : schedule_with(name, pp, int(m), sizes);
            check_can_run(shape, schedule);
            const std::vector<Stage> stages = cut(shape, schedule.stages, split);
            c = run_one(options, shape, schedule, stages, {pretend, false, plain}, loader,
                        train_step);
        } catch (const UserError& reason) {
            if (reason.exit_code != Exit::input) throw;  // a loss that is not finite
            std::string why = reason.what();
            for (size_t at = 0; (at = why.find("; ", at)) != std::string::npos; at += 7)
                why.replace(at, 2, ";\n      ");
            left_out.push_back(fmt::format("  without {}:\n    {}", name, why));
            continue;
        }
        print_row(report, *c);
        if (first_loss == 0) first_loss = c->loss;
        apart = std::max(apart, std::abs(c->loss - first_loss));
        ok = ok && c->as_predicted;
    }
    for (const std::string& line : left_out) print(line);
    const double limit = options.dtype == DType::fp32 ? 1e-5 : 1e-2;
    const bool equal = apart <= limit * std::abs(first_loss);
    print(fmt::format("memory and messages of each schedule: {}; losses: at most {:.2g} apart{}",
                      ok ? "as predicted" : "NOT as predicted", apart, equal ? "" : "   MISMATCH"));
    report.text("compare", "result", ok && equal ? "as predicted" : "not as predicted");
    report.finish();
    return ok && equal;
}

}  // namespace ultrascale::pipeline
