// Predicts what a rank holds and sends in a whole run. --estimate prints it.
#pragma once

#include "lab/predict/budget.h"
#include "options.h"
#include "predict.h"
#include "train/run.h"

namespace ultrascale::data_parallel {

// Predicts a run of a model with `parameters` parameters, without the sums of the gradients.
inline Prediction predict_run(const Options& options, const Chapter& chapter,
                              const StepShape& shape, int64_t parameters) {
    const Communicator& ranks = Communicator::world();
    const int64_t steps = options.steps;
    Prediction run_prediction = predict_one_device(shape, parameters);
    // A ring's and DiLoCo's buffers are allocated after the backward, but gradients in another
    // dtype during it.
    const DType gradients = options.grad_dtype();
    run_prediction.memory.one_after_the_other = chapter.sync.wire(gradients) == gradients;
    if (chapter.every_time(options))
        run_prediction.memory.gradients *= 2;  // the sums over micro-batches
    const bool diloco = chapter.sync.kind == SyncKind::diloco;
    if (diloco) add_diloco(run_prediction, chapter.sync.diloco, ranks, parameters, steps);
    PredictedCommunication step_end;  // the loss and votes, and DiLoCo's mean of norms
    if (diloco)
        step_end.add(ranks, Collective::all_reduce, 1, 3 * sizeof(double));
    else
        step_end.add_scalar_sum(ranks);
    run_prediction.communication += step_end.times(steps);
    return run_prediction;
}

// Includes them: `sync` sums the gradients once a step, or after every micro-batch.
inline Prediction predict_run(const Options& options, const Chapter& chapter,
                              const StepShape& shape, const ParameterList& parameters,
                              const GradientSync& sync, const Mesh& mesh) {
    Prediction sync_prediction;
    add_sums(sync_prediction, sync, parameters, mesh, options.grad_dtype());
    const int64_t times = chapter.every_time(options) ? options.grad_accum : 1;
    Prediction run_prediction = predict_run(options, chapter, shape, parameters.local_numel());
    return run_prediction += sync_prediction.times(options.steps * times);
}

// What a rank holds if other layers of the shape recompute.
inline auto memory_by_shape(const Options& options, const Chapter& chapter,
                            const StepShape& shape) {
    const Mesh mesh(Communicator::world(), {{"dp", Communicator::world().size()}});
    Llama model(shape.config, shape.model);
    const std::unique_ptr<GradientSync> sync =
        make_sync(chapter.sync, model.parameters(), mesh, options.grad_dtype());
    return [memory = predict_run(options, chapter, shape, model.parameters(), *sync, mesh).memory](
               const StepShape& changed) mutable {
        memory.peak_activations = estimate_memory(changed).peak_activations;
        return memory;
    };
}

// Returns advice for the case that `needed` does not fit.
inline std::string what_needs_less(const Options& options, const Chapter& chapter,
                                   const StepShape& shape, const MemoryEstimate& needed) {
    const int64_t technique_bytes =
        needed.total() - estimate_memory(shape).total();  // the same for every batch size
    const char* without = chapter.sync.kind == SyncKind::diloco ? "; another --sync needs less"
                          : chapter.every_time(options)         ? "; --no-sync on needs less"
                                                                : "";
    return what_would_fit(shape, memory_limit() - technique_bytes) + without;
}

// Throws UserError, with this advice, if the run does not fit into memory.
inline void check_fits(const Options& options, const Chapter& chapter, const StepShape& shape) {
    const MemoryEstimate needed =
        predict_run(options, chapter, shape, parameter_count(shape.config)).memory;
    check_fits(needed, memory_limit(),
               [&] { return what_needs_less(options, chapter, shape, needed); });
}

// --estimate: describes the parameters without allocating anything.
inline void print_estimate(Options options, const Chapter& chapter, const StepShape& shape) {
    const Communicator& ranks = Communicator::world();
    const Mesh mesh(ranks, {{"dp", ranks.size()}});
    Llama model(shape.config, shape.model);
    const std::unique_ptr<GradientSync> sync =
        make_sync(chapter.sync, model.parameters(), mesh, options.grad_dtype());
    Report report("01_data_parallel", options, shape, 0);
    report.configuration(sequences_of_step(options, ranks.size()), "");
    report.technique("sync", describe(chapter.sync, chapter.every_time(options)),
                     {{"dp", ranks.size()}});
    options.steps = std::max<int64_t>(options.steps, 1);  // the mean step, as DiLoCo's differ
    const Prediction run_prediction =
        predict_run(options, chapter, shape, model.parameters(), *sync, mesh);
    report.estimate(run_prediction, options.steps, [&] {
        return what_needs_less(options, chapter, shape, run_prediction.memory);
    });
    report.finish();
}

}  // namespace ultrascale::data_parallel
