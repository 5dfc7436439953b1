// Predicts a rank's activations during a step: walks through the schedule as executor.h does, with
// bytes instead of tensors.
//
//     in flight      F: + what forward keeps     B: + what linears need for their weights
//                    D, B: - what forward kept   W: - that
//     messages       from the moment at which a receive is posted, or until a sent tensor is let go
//     at work        what the action needs besides; two that take turns (train/interleave.h) hold
//                    what they need in their turns
//
// 1F1B's rank r has min(p-r, m) micro-batches in flight, ZB-H2's up to 2p-1. The embedding's and
// the head's stage hold more or less than the others, and so do stages with more layers.
#pragma once

#include <functional>

#include "../3_stages.h"
#include "../4_executor/message_plan.h"
#include "lab/predict/estimate.h"

namespace ultrascale::pipeline {

// The sizes of a stage on its own.
inline LocalSizes stage_sizes(const StepShape& shape, const Stage& stage) {
    LocalSizes sizes = local_sizes(shape);
    sizes.layers = stage.last_layer - stage.first_layer;
    sizes.model.recompute = shape.model.recompute.from(stage.first_layer);
    sizes.embedding = stage.embedding, sizes.head = stage.head;
    return sizes;
}

// The bytes of a message, (B, T, h).
inline double message_bytes(const StepShape& shape) {
    return double(shape.micro_batch) * double(shape.seq) * double(shape.config.hidden) *
           double(dtype_bytes(shape.model.dtype));
}

struct StageActivations : StageBytes {
    double message = 0;  // its input or output
};
inline StageActivations stage_activations(const StepShape& shape, const Stage& stage) {
    return {stage_bytes(stage_sizes(shape, stage)), message_bytes(shape)};
}

struct MemoryWalk {
    double peak = 0;                // bytes
    double most_in_flight = 0;      // in micro-batches; a chunk counts as 1/v
    std::vector<double> in_flight;  // the same after each action
};

// Returns the bytes of an action's micro-batch on its chunk.
using BytesOfAction = std::function<const StageActivations&(const Action&)>;
inline MemoryWalk walk_memory(const Schedule& schedule, const MessagePlan& plan, int rank,
                              const BytesOfAction& bytes_of) {
    const auto& actions = schedule.actions[size_t(rank)];
    const double share = double(schedule.ranks()) / schedule.stages;

    MemoryWalk walk;
    double held = 0, in_flight = 0;
    const auto hold = [&](double bytes) { walk.peak = std::max(walk.peak, held += bytes); };
    // Actions i and i + 1: a forward and a backward, which begins. Passes that do not yield have
    // one turn.
    const auto together = [&](int i) {
        const int f = actions[size_t(i)].kind == ActionKind::forward ? i : i + 1, b = 2 * i + 1 - f;
        const StageActivations &forward = bytes_of(actions[size_t(f)]),
                               &backward = bytes_of(actions[size_t(b)]);
        const bool whole = actions[size_t(b)].kind == ActionKind::backward;
        const double kept = whole ? 0 : backward.after_backward_input;
        TurnBytes of_forward = forward.forward_turns, of_backward;
        if (whole) of_backward = backward.backward_turns;
        if (of_forward.empty()) of_forward = {{forward.at_forward, forward.after_forward}};
        if (of_backward.empty())
            of_backward = {{whole ? backward.at_backward : backward.at_backward_input, kept}};
        const double x = plan.input(rank, f) >= 0 ? forward.message : 0;
        if (plan.output(rank, b) >= 0) of_backward.back().after += backward.message;
        held -= x + (plan.input(rank, b) >= 0 ? backward.message : 0) + backward.after_forward;
        in_flight += share;
        walk.most_in_flight = std::max(walk.most_in_flight, in_flight);
        walk.peak = std::max(walk.peak, held + peak_of_turns(of_backward, of_forward, x));
        hold(forward.after_forward + kept);
        for (const int action : {i, i + 1})
            if (plan.output(rank, action) >= 0) hold(forward.message);
        walk.in_flight.push_back(in_flight);
        if (whole) in_flight -= share;
        walk.in_flight.push_back(in_flight);
    };
    for (int i = 0; i < int(actions.size()); ++i) {
        const Action& action = actions[size_t(i)];
        const StageActivations& one = bytes_of(action);
        for (size_t n = plan.posts(rank, i).size(); n-- > 0;) hold(one.message);
        held -= double(plan.releases(rank, i).size()) * one.message;
        if (action.with_next) continue;  // comes with the next one
        if (i > 0 && actions[size_t(i - 1)].with_next) {
            together(i - 1);
            continue;
        }
        if (plan.input(rank, i) >= 0) held -= one.message;  // counted by its stage from here on
        switch (action.kind) {
            case ActionKind::forward:
                walk.peak = std::max(walk.peak, held + one.at_forward);
                hold(one.after_forward);
                in_flight += share;
                break;
            case ActionKind::backward:
                held -= one.after_forward;
                walk.peak = std::max(walk.peak, held + one.at_backward);
                break;
            case ActionKind::backward_input:
                held -= one.after_forward;
                walk.peak = std::max(walk.peak, held + one.at_backward_input);
                hold(one.after_backward_input);
                break;
            case ActionKind::backward_weight: held -= one.after_backward_input; break;
        }
        if (plan.output(rank, i) >= 0) hold(one.message);
        walk.most_in_flight = std::max(walk.most_in_flight, in_flight);
        if (frees(action.kind)) in_flight -= share;
        walk.in_flight.push_back(in_flight);
    }
    return walk;
}

// For stages whose micro-batches are all alike. `stages`: all of the model's stages.
inline MemoryWalk walk_memory(const StepShape& shape, const Schedule& schedule,
                              const MessagePlan& plan, const std::vector<Stage>& stages, int rank) {
    std::vector<StageActivations> chunk_activations;
    for (const Chunk& chunk : schedule.chunks[size_t(rank)])
        chunk_activations.push_back(stage_activations(shape, stages[size_t(chunk.stage)]));
    return walk_memory(schedule, plan, rank, [&](const Action& action) -> const StageActivations& {
        return chunk_activations[size_t(action.chunk)];
    });
}

// For the plain loop (1_plain_1f1b.h), which has one message under way, or one in each direction.
inline MemoryWalk walk_plain(const StepShape& shape, const std::vector<Stage>& stages,
                             int micro_batches, int rank) {
    const int p = int(stages.size()), m = micro_batches, warmup = std::min(p - 1 - rank, m);
    const StageActivations one = stage_activations(shape, stages[size_t(rank)]);
    const double x = rank > 0 ? one.message : 0, y = rank + 1 < p ? one.message : 0;  // as dx, dy
    MemoryWalk walk{.most_in_flight = double(std::min(p - rank, m))};
    double held = 0;
    const auto hold = [&](double bytes) { walk.peak = std::max(walk.peak, held += bytes); };
    const auto forward = [&] {
        held -= x;  // counted by its stage from here on
        walk.peak = std::max(walk.peak, held + one.at_forward);
        hold(one.after_forward), hold(y);
    };
    const auto backward = [&] {
        held -= y + one.after_forward;
        walk.peak = std::max(walk.peak, held + one.at_backward);
        hold(x);
    };
    for (int i = 0; i < warmup; ++i) hold(x), forward(), held -= y;
    if (warmup < m) hold(x);
    for (int i = warmup; i < m; ++i) {
        forward(), hold(y), held -= y;
        backward(), hold(i + 1 < m ? x : 0), held -= x;
    }
    for (int i = 0; i < warmup; ++i) hold(y), backward(), held -= x;
    return walk;
}

}  // namespace ultrascale::pipeline
