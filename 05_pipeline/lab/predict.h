// Predicts a rank's memory and messages by formula. In a step with m micro-batches of B x T tokens,
// m activations and m gradients cross every border between two stages on different ranks:
//
//     a rank with a rank on either side sends 2 m B T h elements, and receives as many:
//     4 m B T h in all, as the playbook's appendix counts them
//
// This holds for every schedule; with v stages a rank sends v times as many. (The first and the
// last rank have a neighbour on one side only.) In addition, gradients are summed over dp, and once
// more if two ranks hold the same weight; the norm and the loss are one number each
// (add_norm_and_loss(), or predict_post_validation()).
#pragma once

#include "../5_post_validation.h"
#include "lab/report/report.h"
#include "memory_walk.h"
#include "model/muon.h"
#include "pipeline.h"

namespace ultrascale::pipeline {

// Adds the messages that a rank sends and receives in a step, each of `bytes` bytes. `provisional`:
// only those of actions that post-validation may repeat.
inline void add_messages(PredictedCommunication& step_communication, const MessagePlan& plan,
                         int rank, int64_t bytes, bool provisional = false) {
    for (const Message& m : plan.messages()) {
        if (m.local() || (m.from != rank && m.to != rank)) continue;
        if (provisional && !plan.provisional(m)) continue;
        const bool sends = m.from == rank;
        step_communication.add(
            Group(m.from < m.to ? "down" : "up", 2), Collective::send_recv,
            {.calls = 1, .bytes = sends ? bytes : 0, .sent = sends ? double(bytes) : 0});
    }
}
// Adds the plain loop's messages. In its middle, one call both sends and receives.
inline void add_plain_messages(PredictedCommunication& step_communication, int ranks, int rank,
                               int64_t micro_batches, int64_t bytes) {
    const int64_t m = micro_batches, warmup = std::min<int64_t>(ranks - 1 - rank, m);
    const auto add = [&](int64_t calls) {
        step_communication.add({"pp", ranks}, Collective::send_recv,
                               {calls, m * bytes, double(m * bytes)});
    };
    if (rank > 0) add(2 * warmup + (warmup < m ? m - warmup + 1 : 0));  // with the rank above
    if (rank + 1 < ranks) add(2 * warmup + m - warmup);                 // with the rank below
}

// The prediction for rank `rank` of the pipeline: the memory of this walk, the computation and the
// sums, without its messages. `parameters`: its own.
inline Prediction predict(const StepShape& shape, const MemoryWalk& walk,
                          const ParameterList& parameters, int dp) {
    Prediction prediction;
    add_parameters(prediction, parameters.local_numel(), shape, Muon::numel(parameters));
    prediction.memory.peak_activations = std::llround(std::min(walk.peak, 9e18));
    add_flops(prediction, shape, parameter_count(shape.config));
    add_gradient_sums(prediction, parameters, {"dp", dp}, shape.grad_dtype);
    for (const auto& p : parameters)
        for (const std::string& group : p->replica_groups)
            prediction.communication.add({group, 2}, Collective::all_reduce, 1,
                                         p->local_numel() * dtype_bytes(shape.grad_dtype));
    return prediction;
}

// A rank's memory during a step. Every rank can compute it for all ranks.
inline MemoryWalk walk_memory(const Pipeline& pipeline, int rank) {
    if (pipeline.plain)
        return walk_plain(pipeline.shape, pipeline.cut, pipeline.schedule.micro_batches, rank);
    return walk_memory(pipeline.shape, pipeline.schedule, pipeline.plan, pipeline.cut, rank);
}

// Adds the sums of the norm and of the loss that end a step which waits for its norm.
inline void add_norm_and_loss(PredictedCommunication& step_communication, int pp, int dp) {
    step_communication.add_scalar_sum({"pp", pp});
    step_communication.add_scalar_sum({"world", pp * dp});
}

// Both predict a step: without the norm and the loss, or with them as train_step() sums them.
inline Prediction predict_without_norm(const Pipeline& pipeline) {
    const int rank = pipeline.pp().rank();
    const int64_t bytes = std::llround(message_bytes(pipeline.shape));
    Prediction step_prediction = predict(pipeline.shape, walk_memory(pipeline, rank),
                                         pipeline.own.parameters(), pipeline.dp().size());
    if (pipeline.plain)
        add_plain_messages(step_prediction.communication, pipeline.pp().size(), rank,
                           pipeline.schedule.micro_batches, bytes);
    else
        add_messages(step_prediction.communication, pipeline.plan, rank, bytes);
    step_prediction.memory.peak_communication += pipeline.mailboxes();
    return step_prediction;
}
inline Prediction predict(const Pipeline& pipeline) {
    Prediction step_prediction = predict_without_norm(pipeline);
    add_norm_and_loss(step_prediction.communication, pipeline.pp().size(), pipeline.dp().size());
    return step_prediction;
}

// The prediction for a run with post-validation. The copies are kept throughout, and the first
// forwards' messages are sent again in `repeated` of its steps.
inline Prediction predict_post_validation(const Pipeline& pipeline, int64_t steps,
                                          int64_t repeated) {
    Prediction step_prediction = predict_without_norm(pipeline);
    const int rank = pipeline.pp().rank(), p = pipeline.pp().size();
    const Group dp = pipeline.dp();
    const int64_t each =
        dtype_bytes(pipeline.shape.model.dtype) + optimizer_bytes(pipeline.shape.model.dtype);
    step_prediction.memory.optimizer += each * pipeline.own.parameters().local_numel();
    step_prediction.memory.host += PostValidation::bytes_of_parts(p);
    if (pipeline.mailboxes() > 0)  // the parts have mailboxes, too
        step_prediction.memory.peak_communication +=
            2 * (p - 1) * PostValidation::bytes_of_parts(p);
    const auto add = [&](const char* name, int64_t sent) {
        step_prediction.communication.add({name, p}, Collective::send_recv,
                                          {1, sent, double(sent)});
    };
    if (rank > 0) add("norm down", 0), add("norm up", PostValidation::bytes_of_parts(p));
    if (rank < p - 1) add("norm down", PostValidation::bytes_of_parts(rank + 1)), add("norm up", 0);
    step_prediction.communication.add_scalar_sum(dp);  // the loss
    PredictedCommunication again;
    add_messages(again, pipeline.plan, rank, std::llround(message_bytes(pipeline.shape)), true);
    Prediction run_prediction = step_prediction.times(steps);
    run_prediction.communication += again.times(repeated);
    return run_prediction;
}

// The messages that this rank sends in `steps` steps, and its memory.
inline Prediction predict_run(const Pipeline& pipeline, int64_t steps, bool post_validation) {
    return post_validation ? predict_post_validation(pipeline, steps, pipeline.executor->repeated())
                           : predict(pipeline).times(steps);
}

}  // namespace ultrascale::pipeline
