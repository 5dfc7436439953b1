// What the chapter's options choose, and which of them do not go together.
#pragma once

#include "report/cli.h"
#include "zero.h"

namespace ultrascale {

struct Chapter {
    ZeroOptions zero;
    bool no_sync = true, compare = false;

    void add_options(OptionList& options, const Options& shared) {
        options
            .add(
                "--stage", zero.stage,
                "What is sharded: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too")
            .between(0, 3)
            .only_if([this] { return !compare; }, "--compare takes each stage in turn")
            .show_default();
        options
            .choice("--gather-overlap", zero.gather_overlap,
                    {{"optimizer", GatherOverlap::optimizer}, {"forward", GatherOverlap::forward}},
                    "Of stages 1 and 2: what the all-gather of parameters runs under")
            .only_if([this] { return compare || zero.stage == 1 || zero.stage == 2; },
                     "it is for stages 1 and 2");
        options.add("--prefetch", zero.prefetch, "Of stage 3: units gathered ahead")
            .between(0, 1000)
            .only_if([this] { return compare || zero.stage == 3; }, "it is for stage 3")
            .show_default();
        options.choice("--offload", zero.offload, {{"none", false}, {"optimizer", true}},
                       "Of stages 1 to 3: what lives, and is computed, on the host");
        options
            .choice("--no-sync", no_sync, {{"on", true}, {"off", false}},
                    "With --grad-accum, stages 0 and 1: communicate after the last micro-batch "
                    "only (on) or after each (off)")
            .only_if([&shared] { return shared.grad_accum > 1; },
                     "a step has one micro-batch; --grad-accum 2 or more")
            .only_if([this] { return compare || zero.stage <= 1; },
                     "stages 2 and 3 communicate after each micro-batch anyway");
        options
            .flag("--compare", compare,
                  "Train with each stage in turn and print one table; with --offload optimizer "
                  "also offloaded")
            .excludes(training_outputs);
    }

    void check(const Options& options) {
        if (!options.svg.empty() && !compare)
            user_error("--svg has no effect: the picture is of --compare");
        if (zero.offload && zero.stage == 0 && !compare)
            user_error(
                "--offload optimizer: what moves to the host is a rank's shard; --stage 1, 2 or 3");
        zero.every_micro_batch = !no_sync && options.grad_accum > 1;
    }
};

}  // namespace ultrascale
