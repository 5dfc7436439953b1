// What a rank holds and sends in a run, by formula.
#pragma once

#include "options.h"
#include "report/estimate.h"

namespace ultrascale {

// Of a run with so many parameters, without the way in which the gradients are summed.
inline Prediction predict_run(const Options& options, const Chapter& chapter, const StepShape& shape,
                       int64_t parameters) {
    const Communicator& ranks = Communicator::world();
    const int64_t steps = options.steps;
    Prediction of_run = predict_one_device(shape, parameters);
    // Buffers of a ring or of DiLoCo come after the backward.
    of_run.memory.one_after_the_other = true;
    if (chapter.every_time(options)) of_run.memory.gradients *= 2;  // the sums over micro-batches
    if (chapter.sync.kind == SyncKind::diloco)
        DiLoCo::add_to(of_run, chapter.sync.diloco, ranks, parameters, steps);
    of_run.communication.add(ranks, Collective::all_reduce, steps, steps * 8);  // the loss
    return of_run;
}

// UserError: it does not fit; what would.
inline void check_fits(const Options& options, const Chapter& chapter, const StepShape& shape) {
    const MemoryEstimate needed =
        predict_run(options, chapter, shape, parameter_count(shape.config)).memory;
    if (needed.total() <= memory_limit()) return;
    const int64_t of_technique =
        needed.total() - estimate_memory(shape).total();  // whatever the batch
    const char* without = chapter.sync.kind == SyncKind::diloco ? "; another --sync needs less"
                          : chapter.every_time(options)         ? "; --no-sync on needs less"
                                                                : "";
    check_fits(needed, memory_limit(),
               what_would_fit(shape, memory_limit() - of_technique) + without);
}

}  // namespace ultrascale
