// All that a rank needs to train with a schedule: the grid of ranks, its stages, messages, and the
// executor that runs them.
#pragma once

#include "../2_schedules/check.h"
#include "../4_executor/executor.h"
#include "predict.h"
#include "train/updater.h"

namespace ultrascale::pipeline {

// UserError if the model cannot run this schedule: a loss in chunks of tokens makes all of its
// gradients in forward, and leaves nothing for a backward of weights.
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

struct Pipeline {
    // All ranks call it. Parameters are described but have no storage yet. `stages`: all of the
    // model's.
    Pipeline(const StepShape& shape, const Schedule& whole_schedule,
             const std::vector<Stage>& stages, const Pretend& pretend, bool post_validation = false)
        : shape(shape),
          schedule(whole_schedule),
          cut(stages),
          mesh(Communicator::world(),
               {{"pp", schedule.ranks()}, {"dp", Communicator::world().size() / schedule.ranks()}}),
          plan(schedule, post_validation),
          own(shape, schedule, cut, pp().rank()),
          messages(pp(), plan, {shape.micro_batch, shape.seq, shape.config.hidden},
                   shape.model.dtype, pretend.hop),
          executor(schedule, plan, own, messages, pp().rank(), pretend) {
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
    // Of a step: without the norm and the loss, or with them as train_step() sums them.
    Prediction prediction_without_norm() const {
        Prediction step_prediction =
            predict(shape, schedule, plan, cut, own.parameters(), pp().rank(), dp().size());
        step_prediction.memory.peak_communication += messages.mailboxes();
        return step_prediction;
    }
    Prediction prediction() const {
        Prediction step_prediction = prediction_without_norm();
        add_norm_and_loss(step_prediction.communication, pp().size(), dp().size());
        return step_prediction;
    }

    const StepShape shape;
    const Schedule schedule;
    const std::vector<Stage> cut;
    Mesh mesh;
    const MessagePlan plan;
    RankStages own;  // this rank's stages
    Messages messages;
    Executor executor;
};

// Forward and backward of all micro-batches, and what follows: which gradients are summed, and the
// update.
using TrainStep = std::function<void(Step&, Pipeline&, Updater&)>;

}  // namespace ultrascale::pipeline
