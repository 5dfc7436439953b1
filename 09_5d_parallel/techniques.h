// What the program's options choose, in the terms of the chapters.
#pragma once

#include "02_zero/zero.h"
#include "03_tensor_parallel/tensor_options.h"
#include "04_context_parallel/context_options.h"
#include "05_pipeline/schedules.h"
#include "06_expert_parallel/expert_options.h"
#include "08_mixed_precision/precision_options.h"
#include "axes.h"

namespace ultrascale {

struct Techniques {
    Axes axes;
    ZeroOptions zero{.stage = 0};
    double bucket_mb = 25;  // of --zero 0
    TensorOptions tensor;
    ContextOptions context;
    ExpertOptions experts{.aux = Aux::megatron};
    PrecisionOptions precision{.recipe = *find_recipe("fp32")};
    std::string schedule = "1f1b";
    ScheduleOptions sizes;
    std::string split = "auto";

    // Sets what follows from the axes: dp, each technique's ranks, and which tokens they take (the
    // `layout` that was given, or the variant's own). UserError if `ranks` cannot be cut so.
    void complete(int ranks, const std::string& layout = "") {
        axes.complete(ranks);
        tensor.tp = axes.tp, context.cp = axes.cp, experts.ep = axes.ep;
        if (axes.cp > 1) return ultrascale::complete(context, layout);
        context = {.cp = 1, .layout = Layout::contiguous};
    }
    Schedule make_schedule(int micro_batches) const {
        return ultrascale::make_schedule(schedule, axes.pp, micro_batches, sizes);
    }
};

}  // namespace ultrascale
