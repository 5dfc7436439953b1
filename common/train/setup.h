// The start of a run: new from the seed, from a checkpoint's weights, or in the middle of an
// earlier run.
#pragma once

#include <span>

#include "data.h"
#include "files/checkpoint.h"
#include "lab/options/cli.h"
#include "model/optimizer.h"

namespace ultrascale {

// Gives the parameters their values: from --load, or drawn from --seed.
inline void load_or_initialize(const Options& options, ParameterList& parameters) {
    if (options.load.empty())
        parameters.initialize(options.seed);
    else
        load_parameters(options.load, parameters);
}

// Does the same for the pieces that this rank holds.
inline void load_or_draw(const Options& options, const std::vector<AdamW::Item>& items) {
    std::vector<TensorPart> parts;
    for (const AdamW::Item& item : items)
        parts.emplace_back(*item.parameter, item.value, item.begin);
    if (!options.load.empty()) return load_parameters(options.load, parts);
    for (const AdamW::Item& item : items)
        draw(*item.parameter, item.begin, item.value, options.seed);
}

// The tensors that a checkpoint contains in addition to the weights: the states of the optimizers
// (one, or one per shard), and the model's buffers.
inline std::vector<TensorPart> states_of(std::span<AdamW> optimizers, const ParameterList& model) {
    std::vector<TensorPart> states;
    for (AdamW& optimizer : optimizers)
        for (TensorPart& part : optimizer.states()) states.push_back(std::move(part));
    for (const TensorPart& buffer : model.buffers()) states.push_back(buffer);
    return states;
}

// If --load contains a training state, loads `states` from it and returns it; otherwise returns the
// state of a new run.
inline TrainingState resume_or_start(const Options& options,
                                     const std::vector<TensorPart>& states) {
    if (options.load.empty() || !has_training_state(options.load))
        return {.seed = options.seed, .shuffled = options.shuffle, .seq = options.seq};
    const TrainingState state = load_training_state(options.load, states);
    if (options.shuffle != state.shuffled)
        user_error(
            "the run in {} took its samples {}", options.load,
            state.shuffled
                ? fmt::format("in another order: continue with --shuffle --seed {}", state.seed)
                : "in order: continue without --shuffle");
    if (options.shuffle && state.seed != options.seed)
        user_error("--seed {}: the run in {} shuffled with seed {}", options.seed, options.load,
                   state.seed);
    if (options.seq > 0 && state.seq > 0 && options.seq != state.seq)
        user_error("--seq {}: the run in {} has samples of {} and must continue with them",
                   options.seq, options.load, format_count(state.seq, "token"));
    return state;
}
// Does the same with the optimizers' states and the model's buffers.
inline TrainingState resume_or_start(const Options& options, std::span<AdamW> optimizers,
                                     const ParameterList& model) {
    std::vector<TensorPart> states;  // a new run creates them in its first step
    if (!options.load.empty() && has_training_state(options.load))
        states = states_of(optimizers, model);
    const TrainingState state = resume_or_start(options, states);
    if (state.step > 0)
        for (AdamW& optimizer : optimizers) optimizer.set_steps_done(state.step);
    return state;
}

// The training state after one more step of `sequences` sequences of `seq` tokens from `file`.
inline TrainingState after_step(const TrainingState& state, const Options& options,
                                const TokenFile& file, int64_t sequences, int64_t seq) {
    return {.step = state.step + 1,
            .next_sample = state.next_sample + sequences,
            .tokens_seen = state.tokens_seen + sequences * seq,
            .seed = options.seed,
            .shuffled = options.shuffle,
            .seq = seq,
            .data = options.data_name(),
            .data_tokens = file.tokens(),
            .recipe = state.recipe,
            .options = state.options};
}

// The header's description of the data: "built-in text: 117786 tokens, 920 samples". If a resumed
// run's data differ from the data it has read so far, another line says so. Throws UserError if
// --data was not given, but the file has changed.
inline std::string describe_data(const Options& options, const TokenFile& file,
                                 const DataLoader& loader, const TrainingState& start) {
    const auto called = [](const std::string& data) {
        return data == built_in_data ? "the built-in text" : printable(data);
    };
    std::string words = options.data.empty()
                            ? fmt::format("built-in text: {} tokens", file.tokens())
                            : file.description();
    words += ", " + format_count(loader.samples(), "sample");
    if (start.step == 0) return words;
    const char* next_line = "\n          ";
    if (start.data.empty())
        return fmt::format("{}{}the checkpoint does not record what the run has read so far", words,
                           next_line);
    const bool same_number = start.data_tokens == file.tokens();
    if (!same_number && options.data_of_run)
        user_error(
            "{} has {} tokens, but when the run in {} read it, it had {}; to continue with its "
            "present content, give it with --data",
            called(start.data), file.tokens(), options.load, start.data_tokens);
    if (same_number && start.data == options.data_name()) return words;
    return fmt::format("{}{}the run has read {} so far: {}", words, next_line, called(start.data),
                       same_number ? "the same number of tokens"
                                   : fmt::format("{} tokens, other data", start.data_tokens));
}

// The learning rate of `step` in a run that started at `first_step`. The cosine ends at --lr-steps,
// or else at the end of the run.
inline double learning_rate_of(const Options& options, int64_t first_step, int64_t step) {
    OptimizerOptions schedule = options.optimizer;
    if (schedule.total_steps == 0) schedule.total_steps = first_step + options.steps;
    return learning_rate(schedule, step);
}

}  // namespace ultrascale
