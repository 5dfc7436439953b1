// What a rank holds and sends, by formula. In a step with m micro-batches of B x T tokens, every
// border between two stages on different ranks is crossed by m activations and m gradients:
//
//     a rank with a rank on either side sends 2 m B T h elements, and receives as many:
//     4 m B T h in all, as the playbook's appendix counts them
//
// whatever the schedule; with v stages a rank v times as many. (The first and the last rank have a
// neighbour on one side only.) Besides, gradients are summed over dp, and once more where two ranks
// hold the same weight; the norm and the loss are one number each
// (add_norm_and_loss(), or 5_post_validation.h).
#pragma once

#include "../4_executor/messages.h"
#include "lab/report/report.h"
#include "memory_walk.h"

namespace ultrascale::pipeline {

// The prediction for place `rank` of the pipeline. `parameters`: its own.
inline Prediction predict(const StepShape& shape, const Schedule& schedule, const MessagePlan& plan,
                          const std::vector<Stage>& stages, const ParameterList& parameters,
                          int rank, int dp) {
    Prediction prediction;
    add_parameters(prediction, parameters.local_numel(), shape);
    prediction.memory.peak_activations =
        std::llround(std::min(walk_memory(shape, schedule, plan, stages, rank).peak, 9e18));
    add_flops(prediction, shape, parameter_count(shape.config));
    add_messages(prediction.communication, plan, rank, std::llround(message_bytes(shape)));
    add_gradient_sums(prediction, parameters, {"dp", dp}, shape.grad_dtype);
    for (const auto& p : parameters)
        for (const std::string& group : p->replica_groups)
            prediction.communication.add({group, 2}, Collective::all_reduce, 1,
                                         p->local_numel() * dtype_bytes(shape.grad_dtype));
    return prediction;
}

// The sums that end a step which waits for its norm: of the norm, and of the loss.
inline void add_norm_and_loss(PredictedCommunication& step_communication, int pp, int dp) {
    if (pp > 1) step_communication.add({"pp", pp}, Collective::all_reduce, 1, 8);
    if (pp * dp > 1) step_communication.add({"world", pp * dp}, Collective::all_reduce, 1, 8);
}

}  // namespace ultrascale::pipeline
