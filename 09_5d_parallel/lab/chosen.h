// Completes the techniques that the options chose, and describes them.
#pragma once

#include "../2_techniques.h"
#include "04_context_parallel/lab/shared_options.h"

namespace ultrascale::five_d {

// Sets what follows from the axes: dp, each technique's number of ranks, and which tokens they take
// (the given `layout`, or the variant's own). Throws UserError if `ranks` cannot be divided so.
inline void complete(Techniques& t, int ranks, const std::string& layout = "") {
    t.axes.complete(ranks);
    t.axes.shard_size = t.zero.shard_size;
    t.tensor.tp = t.axes.tp, t.context.cp = t.axes.cp, t.experts.ep = t.axes.ep;
    if (t.axes.cp > 1) return context_parallel::complete(t.context, layout);
    t.context = {.cp = 1, .layout = Layout::contiguous};
}

// "pp 2 x dp 2 x tp 2; ZeRO-1; sequence parallel; 1f1b"
inline std::string describe(const Techniques& t) {
    std::string text = describe(t.axes);
    if (t.axes.dp * t.axes.cp * t.axes.ep > 1 || t.zero.stage > 0)
        text += t.zero.stage == 0
                    ? "; gradients in buckets"
                    : fmt::format("; ZeRO-{}{}", t.zero.stage, t.zero.offload ? ", offloaded" : "");
    if (t.zero.shard_size > 0) text += fmt::format(" over {} of dp", t.zero.shard_size);
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

}  // namespace ultrascale::five_d
