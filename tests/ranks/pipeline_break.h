// A short training with 05_pipeline's parts, in which something can be done wrong.
#pragma once

#include "05_pipeline/3_cut.h"
#include "05_pipeline/lab/predict.h"
#include "break_checks.h"
#include "core/threads.h"
#include "train/data.h"
#include "train/gradients.h"

namespace ultrascale::pipeline_break {
using namespace ultrascale::pipeline;

inline constexpr int64_t T = 16, B = 1, steps = 3;
inline int ranks() { return Communicator::world().size(); }

// There are two layers for each rank, so that it can have two stages.
inline LlamaConfig config_of(bool tied) {
    return {.layers = 2 * ranks(),
            .hidden = 24,
            .heads = 4,
            .kv_heads = 2,
            .head_dim = 6,
            .ffn = 40,
            .vocab = 257,
            .tied = tied};
}

// The ways in which a broken run differs from the chapter's main.
struct Breaks {
    // Returns a rank's part of a micro-batch.
    std::function<HostBatch(const HostBatch&, int rank)> batch = {};
    // `describe` runs after the parameters are described; `after_actions` runs after a step's
    // actions, before gradients are summed.
    std::function<void(ParameterList&, int rank)> describe = [](ParameterList&, int) {};
    std::function<void(ParameterList&, int rank)> after_actions = [](ParameterList&, int) {};
    bool tied_counts_twice = false;  // in the norm
    bool plain = false;              // runs the loop, not the executor
    std::string predicted;           // the predicted schedule; empty: the one that runs
};

inline Schedule schedule_of(const std::string& name) {
    if (name == "plain") return plain_schedule(ranks(), 2 * ranks());
    return make_schedule(name, ranks(), 2 * ranks());
}

inline Checks train(const Schedule& schedule, bool tied = false, const Breaks& breaks = {}) {
    use_threads(ranks_on_this_node());
    const LlamaConfig config = config_of(tied);
    const Communicator& world = Communicator::world();
    Options options;
    options.optimizer.clip = 0.1;
    const StepShape shape{.config = config, .model = {}, .micro_batch = B, .seq = T};
    const std::vector<Stage> stages = cut(shape, schedule.stages, "auto");
    const TokenFile file("common/text.txt", config.vocab);
    const DataLoader loader(file, {.seq = T});
    Pipeline pipeline(shape, schedule, stages, {.plain = breaks.plain});
    ParameterList& parameters = pipeline.parameters();
    breaks.describe(parameters, world.rank());
    pipeline.allocate(DType::fp32, DType::fp32);
    PlainUpdater optimizer(parameters, options, &pipeline.mesh);
    optimizer.start();
    testing::internal::CaptureStdout();
    const int64_t sequences = B * schedule.micro_batches;  // sequences of a step
    Verifier verifier(options, config, loader, std::vector<int64_t>(size_t(steps), sequences), {});
    testing::internal::GetCapturedStdout();
    Report report("test", options, shape, steps);
    memory_reset_peak();
    world.barrier();
    communication_reset_counts();
    DataSlice slice{.micro_batch = B};
    if (breaks.batch)
        slice.part = [&](const HostBatch& whole) { return breaks.batch(whole, world.rank()); };
    for (int64_t s = 0; s < steps; ++s) {
        Step step(loader, slice, s + 1, s * sequences, sequences);
        parameters.begin_gradients(step.accumulated / schedule.copies());
        pipeline.run(step);
        breaks.after_actions(parameters, world.rank());
        sum_gradients(parameters, pipeline.mesh);
        if (s == 0) verifier.gradient(parameters.parts(&Parameter::grad));
        Parameter* const copy = parameters.find("model.embed_tokens.weight");
        std::vector<std::string> nowhere;
        if (breaks.tied_counts_twice && copy) copy->replica_groups.swap(nowhere);
        const Tensor squared_norm = optimizer.squared_norm();
        if (breaks.tied_counts_twice && copy) copy->replica_groups.swap(nowhere);
        optimizer.step(options.optimizer.lr, squared_norm);
        step.sum_loss(world);
        verifier.after_step(s, step.loss.to_host<double>()[0], parameters.parts(&Parameter::value));
    }
    Prediction predicted = predict(pipeline);
    if (!breaks.predicted.empty()) {
        const Schedule other = schedule_of(breaks.predicted);
        const MessagePlan plan(other);
        predicted.memory.peak_activations = std::llround(
            walk_memory(shape, other, plan, cut(shape, other.stages, "auto"), world.rank()).peak);
    }
    return checks_of(verifier, report, predicted, steps);
}

}  // namespace ultrascale::pipeline_break
