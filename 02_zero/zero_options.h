// What the chapter's options choose.
#pragma once

#include "flat_layout.h"
#include "report/option_list.h"

namespace ultrascale {

enum class GatherOverlap { optimizer, forward };

struct ZeroOptions {
    int stage = 1;
    GatherOverlap gather_overlap = GatherOverlap::forward;
    int64_t prefetch = 1;        // of stage 3, in units
    bool keep_gathered = false;  // stage 3: gather a unit's parameters once a step
    Cut cut = Cut::unit;         // stage 3: the layout's, or the whole model as one flat tensor
    bool offload_activations = false;  // a layer's kept input is on the host
    bool offload = false;  // of stages 1 to 3: the optimizer's states and update are on the host
    // stages 0 and 1: communicate gradients after each micro-batch, as 2 and 3 do anyway
    bool every_micro_batch = false;
};

// The options of stages 1 to 3 that hold in every composition. compare: each stage runs in turn.
inline void add_options(OptionList& options, ZeroOptions& zero, const bool& compare) {
    options
        .choice("--gather-overlap", zero.gather_overlap,
                {{"optimizer", GatherOverlap::optimizer}, {"forward", GatherOverlap::forward}},
                "With stages 1 and 2: what hides the all-gather of parameters")
        .only_if([&] { return compare || zero.stage == 1 || zero.stage == 2; },
                 "it is for stages 1 and 2");
    options.add("--prefetch", zero.prefetch, "With stage 3: units gathered ahead")
        .between(0, 1000)
        .only_if([&] { return compare || zero.stage == 3; }, "it is for stage 3")
        .show_default();
    options
        .choice("--keep-gathered", zero.keep_gathered, {{"on", true}, {"off", false}},
                "With stage 3: gather parameters once a step and keep them whole (on), or "
                "twice a micro-batch, freed after each pass (off)")
        .only_if([&] { return compare || zero.stage == 3; }, "it is for stage 3");
}

}  // namespace ultrascale
