// A run's lines in the header, and the sections of its report.
#pragma once

#include "estimate.h"
#include "lab/verify/verify.h"

namespace ultrascale::data_parallel {

// The bounds of --verify if fp32 gradients are rounded to bf16 on their way. The first loss is
// computed before any gradient travels. The gradient's error is that of two roundings, each with a
// relative error of about 2^-9 / sqrt(3) = 0.0011.
inline VerifyBounds bounds_of_bf16_on_the_wire() {
    VerifyBounds bounds = verify_bounds(DType::bf16);
    bounds.first_loss = verify_bounds(DType::fp32).first_loss;
    bounds.gradient = 1e-2;
    bounds.rounding = DType::fp32;
    return bounds;
}

inline TrainingSetup describe_run(const Options& options, const Chapter& chapter, Llama& model,
                                  Updater& optimizer) {
    const SyncOptions& sync = chapter.sync;
    TrainingSetup what = training_setup(model, optimizer);
    what.label = "sync", what.technique = describe(sync, chapter.every_time(options));
    what.layout = {{"dp", Communicator::world().size()}};
    what.cuda_graph = chapter.cuda_graph;
    if (communication_through_host())
        what.no_graph = "ranks share a GPU, so their messages pass the host";
    if (sync.kind == SyncKind::diloco) {
        what.weights_only = true;  // each rank has moments of its own
        what.validation_note = "; between two outer steps the weights are rank 0's own";
        what.may_stop = [H = sync.diloco.inner_steps](int64_t done) { return done % H == 0; };
        what.not_equal = "DiLoCo is a different algorithm: ranks train apart between outer steps";
    }
    if (options.grad_dtype() == DType::fp32 && options.dtype == DType::fp32 &&
        sync.wire(DType::fp32) == DType::bf16)
        what.bounds = bounds_of_bf16_on_the_wire();
    return what;
}

// Prints the bytes that a rank sends per token (each rank has `tokens` of them in a step), next to
// the bytes that an all-reduce of the gradients in every step would send.
inline void print_savings(Report& report, const DiLoCoOptions& options, int64_t parameters,
                          int64_t steps, int64_t tokens, DType gradients) {
    const int64_t meetings = outer_steps(options, steps);
    const auto sent = [](int64_t bytes) {
        return bytes_sent(Collective::all_reduce, double(bytes), Communicator::world().size());
    };
    const double bytes = sent(meetings * parameters * dtype_bytes(DType::fp32)) /
                         double(steps * tokens),
                 every_step = sent(parameters * dtype_bytes(gradients)) / double(tokens);
    print(fmt::format(
        "  DiLoCo: {} in {}; sent {:.4g} bytes a token (gradients every step: {:.4g})",
        format_count(meetings, "outer step"), format_count(steps, "step"), bytes, every_step));
    report.value("diloco", "outer_steps", double(meetings));
    report.value("diloco", "sent_bytes_per_token", bytes);
    report.value("diloco", "all_reduce_sent_bytes_per_token", every_step);
}

// Prints the report's sections. Returns false if memory or communication differ from their
// predictions.
inline bool print_sections(Report& report, const Options& options, const Chapter& chapter,
                           const StepShape& shape, const ParameterList& parameters,
                           const GradientSync& sync, const Mesh& mesh) {
    const Prediction run_prediction = predict_run(options, chapter, shape, parameters, sync, mesh);
    bool ok = report.memory(run_prediction);
    ok = report.communication_of_run(run_prediction, options.steps) && ok;
    if (chapter.sync.kind == SyncKind::diloco)
        print_savings(report, chapter.sync.diloco, parameters.local_numel(), options.steps,
                      options.micro_batch * options.grad_accum * shape.seq, options.grad_dtype());
    report.throughput(run_prediction);
    return ok;
}

}  // namespace ultrascale::data_parallel
