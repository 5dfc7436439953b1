// What the chapter's options choose, and which of them do not go together.
#pragma once

#include "batch_size.h"
#include "comm/comm.h"
#include "report/cli.h"
#include "train/run.h"

namespace ultrascale {

struct Chapter {
    std::string batch_ramp, compare;
    bool naive_mean = false, noise_scale = false, estimate = false;

    void add_options(OptionList& options, const Options& shared) {
        options
            .flag("--naive-mean", naive_mean,
                  "Average each micro-batch's own mean: wrong where they count different numbers "
                  "of targets")
            .only_if(
                [this, &shared] { return shared.grad_accum > 1 || !batch_ramp.empty(); },
                "with one micro-batch a step its mean is the right one; --grad-accum 2 or more");
        options
            .add("--batch-ramp", batch_ramp,
                 "SIZE:STEPS,...,SIZE in sequences; replaces --grad-accum")
            .excludes({"--grad-accum"});
        options.flag("--noise-scale", noise_scale,
                     "Estimate the critical batch size (needs 2 micro-batches a step)");
        options.flag("--estimate", estimate, "Predict memory, allocate nothing")
            .excludes(training_outputs)
            .excludes({"--svg"});
        options
            .add("--compare", compare,
                 "attention or recompute: measure the alternatives in one table")
            .one_of({"attention", "recompute"})
            .excludes(training_outputs)
            .excludes({"--svg"});
    }

    void check() const {
        if (Communicator::world().size() > 1)
            user_error("00_single_gpu runs on one device: start it with one rank");
    }
    // How large a step is, which may grow. UserError: where it is too small or too large.
    BatchRamp ramp(const Options& options) const {
        const int64_t B = options.micro_batch;
        const BatchRamp ramp(batch_ramp, B * options.grad_accum, B);
        checked_sequences(double(ramp.largest()));
        if (noise_scale && ramp.largest() < 2 * B)
            user_error("--noise-scale needs two micro-batches a step: {}",
                       batch_ramp.empty()
                           ? "--grad-accum 2"
                           : fmt::format("a size of at least {} in --batch-ramp", 2 * B));
        return ramp;
    }
};

}  // namespace ultrascale
