// All that a rank needs to train: the grid of ranks, its stages, and their runner, which is the
// plain loop or the executor with its messages.
#pragma once

#include "../1_plain_1f1b.h"
#include "../2_schedules/schedules.h"
#include "../4_executor/executor.h"
#include "lab/predict/estimate.h"
#include "train/updater.h"

namespace ultrascale::pipeline {

// Throws UserError if the model cannot run this schedule: a loss in chunks of tokens computes all
// of its gradients in forward, and leaves nothing for a backward of weights.
inline void check_can_run(const StepShape& shape, const Schedule& schedule) {
    for (int rank = 0; rank < schedule.ranks() && schedule.copies() > 1; ++rank)
        other_holder(schedule, rank);
    if (shape.model.loss_chunk == 0) return;
    for (const auto& actions : schedule.actions)
        if (std::ranges::any_of(actions, [](const Action& action) {
                return action.kind == ActionKind::backward_weight;
            }))
            user_error(
                "--loss-chunk {}: --schedule {} computes the gradient of the head's weight apart "
                "from that of its input, but a loss in chunks makes both in forward; use 1f1b or "
                "leave it out",
                shape.model.loss_chunk, schedule.name);
}

// The schedule that describes the plain loop, which does not read it.
inline Schedule plain_schedule(int ranks, int micro_batches) {
    Schedule schedule = make_schedule("1f1b", ranks, micro_batches);
    schedule.name = "plain";
    return schedule;
}

struct RunAs {
    Pretend pretend = {};
    bool post_validation = false;
    bool plain = false;  // the loop of 1_plain_1f1b.h; the schedule, 1f1b, then only describes it
};

struct Pipeline {
    // All ranks call it. Parameters are described but have no storage yet. `stages`: all of the
    // model's stages.
    Pipeline(const StepShape& shape, const Schedule& whole_schedule,
             const std::vector<Stage>& stages, const RunAs& as = {})
        : shape(shape),
          schedule(whole_schedule),
          cut(stages),
          mesh(Communicator::world(),
               {{"pp", schedule.ranks()}, {"dp", Communicator::world().size() / schedule.ranks()}}),
          plan(schedule, as.post_validation),
          own(shape.config, shape.model, shape.grad_dtype, schedule, cut, pp().rank(),
              default_factories(shape.config, shape.model)) {
        const Shape message = {shape.micro_batch, shape.seq, shape.config.hidden};
        if (as.plain) {
            plain.emplace(own.chunk(0), pp(), message, shape.model.dtype);
        } else {
            messages.emplace(pp(), plan, message, shape.model.dtype, as.pretend.hop);
            executor.emplace(schedule, plan, own, *messages, pp().rank(), as.pretend);
        }
        add_holders(mesh, schedule, shape.config);
    }
    Pipeline(const Pipeline&) = delete;

    const Communicator& pp() const { return mesh.group("pp"); }
    const Communicator& dp() const { return mesh.group("dp"); }
    ParameterList& parameters() { return own.parameters(); }
    void allocate(DType values, DType grads) {
        parameters().allocate_values(values);
        parameters().allocate_grads(grads, dp().symmetric_memory());
    }
    void run(Step& step, Hooks* hooks = nullptr) {
        plain ? plain->run(step, hooks) : executor->run(step, hooks);
    }
    // Call it after the update, whose end the executor's timeline needs.
    void updated() {
        if (executor) executor->updated();
    }
    int64_t mailboxes() const { return messages ? messages->mailboxes() : 0; }

    const StepShape shape;
    const Schedule schedule;
    const std::vector<Stage> cut;
    Mesh mesh;
    const MessagePlan plan;
    RankStages own;  // this rank's stages
    std::optional<Plain1F1B> plain;
    std::optional<Messages> messages;  // these two, or the plain loop
    std::optional<Executor> executor;
};

// Runs forward and backward of all micro-batches, sums gradients, and updates.
using TrainStep = std::function<void(Step&, Pipeline&, Updater&)>;

}  // namespace ultrascale::pipeline
