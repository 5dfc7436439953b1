// What the program's options choose, in the terms of the chapters.
#pragma once

#include "02_zero/zero_options.h"
#include "03_tensor_parallel/3_attention_heads.h"
#include "03_tensor_parallel/tensor_options.h"
#include "04_context_parallel/lab/shared_options.h"
#include "05_pipeline/2_schedules/schedules.h"
#include "06_expert_parallel/expert_options.h"
#include "08_mixed_precision/precision_options.h"
#include "1_axes.h"
#include "lab/predict/estimate.h"

namespace ultrascale::five_d {

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
        if (axes.cp > 1) return context_parallel::complete(context, layout);
        context = {.cp = 1, .layout = Layout::contiguous};
    }
    Schedule make_schedule(int micro_batches) const {
        return pipeline::make_schedule(schedule, axes.pp, micro_batches, sizes);
    }
};

// "pp 2 x dp 2 x tp 2; ZeRO-1; sequence parallel; 1f1b"
inline std::string describe(const Techniques& t) {
    std::string text = describe(t.axes);
    if (t.axes.dp * t.axes.cp * t.axes.ep > 1 || t.zero.stage > 0)
        text += t.zero.stage == 0
                    ? "; gradients in buckets"
                    : fmt::format("; ZeRO-{}{}", t.zero.stage, t.zero.offload ? ", offloaded" : "");
    if (t.zero.gathers == Sent::fp8) text += ", gathered in fp8";
    if (t.zero.sums != Sent::plain)
        text += fmt::format(", summed in {}", t.zero.sums == Sent::fp8 ? "fp8" : "bf16");
    if (t.tensor.sequence_parallel) text += "; sequence parallel";
    if (t.axes.cp > 1)
        text += fmt::format("; {}, {}", variant_names[int(t.context.variant)],
                            layout_names[int(t.context.layout)]);
    if (t.experts.ep > 1)
        text += fmt::format("; rows by {}", dispatch_names[int(t.experts.dispatch)]);
    if (t.axes.pp > 1) text += "; " + t.schedule;
    if (t.precision.recipe.fp8())
        text += fmt::format("; products in fp8, {}", t.precision.recipe.name);
    return text;
}

// The shape with the heads that a rank of tp has.
inline StepShape with_heads_of(StepShape shape, int tp, int rank) {
    const HeadSplit heads = split_heads(shape.config, tp, rank);
    shape.config.heads = heads.heads, shape.config.kv_heads = heads.kv_heads;
    return shape;
}

}  // namespace ultrascale::five_d
