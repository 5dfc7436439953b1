// Where a run starts: fresh from the seed, from a checkpoint's weights, or in the middle of an earlier run.
#pragma once

#include "checkpoint.h"
#include "cli.h"
#include "optimizer.h"

namespace ultrascale {

// Gives the parameters their values: from --load, or drawn from --seed.
inline void load_or_initialize(const Options& options, ParameterList& parameters) {
    if (options.load.empty())
        parameters.initialize(options.seed);
    else
        load_parameters(options.load, parameters);
}

// If --load holds a training state, fills the optimizer's and returns where training stood; else it starts at zero.
inline TrainingState resume_or_start(const Options& options, AdamW& optimizer) {
    if (options.load.empty() || !has_training_state(options.load)) return {.seed = options.seed};
    const TrainingState state = load_training_state(options.load, optimizer.states());
    if (options.shuffle && state.seed != options.seed)
        user_error("--seed {}: the run in {} shuffled with seed {}", options.seed, options.load, state.seed);
    optimizer.set_steps_done(state.step);
    return state;
}

// The learning rate of `step` in a run that started at `first_step`: the cosine ends at --lr-steps, or with the run.
inline double learning_rate_of(const Options& options, int64_t first_step, int64_t step) {
    OptimizerOptions schedule = options.optimizer;
    if (schedule.total_steps == 0) schedule.total_steps = first_step + options.steps;
    return learning_rate(schedule, step);
}

}  // namespace ultrascale
