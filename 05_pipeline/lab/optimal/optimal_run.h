// --schedule optimal in a training: the times of F, B and W are measured (or pretended), rank 0
// searches for the best order, and all ranks then train with it.
#pragma once

#include "../../2_schedules/schedule_file.h"
#include "../compare.h"
#include "optimal.h"

namespace ultrascale::pipeline {

// The times by which the schedule is chosen: the pretended ones, or those of a few steps with
// ZB-H1, which has the same stages and actions. Anything that would make the training fail is
// refused before the measurement.
inline Costs measured_costs(const Options& options, const StepShape& shape, int pp,
                            const std::string& split, const Pretend& pretend,
                            const TrainStep& train_step) {
    check_size_of_search(pp, options.grad_accum);
    Schedule schedule = make_schedule("zb-h1", pp, int(options.grad_accum));
    schedule.name = "optimal";
    check_can_run(shape, schedule);
    const std::vector<Stage> stages = cut(shape, schedule.stages, split);
    const Run files("05_pipeline", options, shape, {.micro_batch = options.micro_batch});
    resume_or_start(options, {});
    if (pretend.on()) return pretended_costs(schedule, pretend);
    print("measuring F, B and W of each stage ...");
    return run_one(options, shape, schedule, stages, {}, files.loader(), train_step).costs;
}

// `room`: how many micro-batches' activations a rank may hold; 0: as many as there are ranks. All
// ranks call it and get the same schedule, or the same UserError.
inline Schedule choose_optimal(const Costs& costs, int micro_batches, int room, int seconds) {
    const Communicator& world = Communicator::world();
    const std::string failed = "failed: ";
    std::string text;
    if (world.rank() == 0) {
        try {
            const OptimalSchedule best = optimal_schedule({.stages = costs.stages,
                                                           .hop = costs.hop,
                                                           .micro_batches = micro_batches,
                                                           .room = room,
                                                           .seconds = seconds});
            print(fmt::format("a step of {:.2f} ms, its update left out\n  {}", best.seconds * 1e3,
                              best.words()));
            text = schedule_text(best.schedule);
        } catch (const UserError& error) {
            text = failed + error.what();
        }
    }
    world.wait_asleep_for(0);
    text = world.broadcast_string(text, 0);
    if (text.starts_with(failed)) user_error("{}", text.substr(failed.size()));
    Schedule schedule = ScheduleReader("optimal", text).read();
    schedule.name = "optimal";
    check_schedule(schedule);
    return schedule;
}

}  // namespace ultrascale::pipeline
