// The options that the chapter shares with 09_5d_parallel, and which of them exclude each other.
#pragma once

#include "../zero_options.h"
#include "core/error.h"
#include "lab/options/option_list.h"

namespace ultrascale::zero {

// Adds the options of stages 1 to 3 that every composition has. compare: all stages run in turn.
inline void add_options(OptionList& options, ZeroOptions& zero, const bool& compare) {
    options
        .choice("--gather-overlap", zero.gather_overlap,
                {{"optimizer", GatherOverlap::optimizer}, {"forward", GatherOverlap::forward}},
                "With stages 1 and 2: what hides the all-gather of parameters")
        .only_if([&] { return compare || zero.stage == 1 || zero.stage == 2; },
                 "it is for stages 1 and 2")
        .only_if([&] { return compare || !zero.plain; }, "--plain hides nothing");
    options
        .add("--shard-size", zero.shard_size,
             "With stages 1 to 3: ranks that share a set of shards; other groups of as many hold "
             "copies, and are sent only sums of shards. Default: all data-parallel ranks")
        .between(2, 1 << 20)
        .only_if([&] { return compare || zero.stage > 0; }, "stage 0 has no shards")
        .only_if([&] { return compare || !zero.plain; }, "--plain shards over all ranks");
    options.add("--prefetch", zero.prefetch, "With stage 3: units gathered ahead")
        .between(0, 1000)
        .only_if([&] { return compare || zero.stage == 3; }, "it is for stage 3")
        .show_default();
    options
        .choice("--keep-gathered", zero.keep_gathered, {{"on", true}, {"off", false}},
                "With stage 3: gather parameters once a step and keep them whole (on), or "
                "twice a micro-batch, freed after each pass (off)")
        .only_if([&] { return compare || zero.stage == 3; }, "it is for stage 3");
    options
        .choice("--gather-dtype", zero.gathers, {{"plain", Sent::plain}, {"fp8", Sent::fp8}},
                "With stage 3: parameters travel as they are, or in e4m3 with a scale for each "
                "rank's shard")
        .only_if([&] { return zero.stage == 3; }, "it is for stage 3");
    options
        .choice("--reduce-dtype", zero.sums,
                {{"plain", Sent::plain}, {"bf16", Sent::bf16}, {"fp8", Sent::fp8}},
                "With stages 2 and 3: gradients travel to where they are summed as they are, or "
                "rounded to bf16, or to e4m3 with scales")
        .only_if([&] { return zero.stage >= 2; }, "it is for stages 2 and 3");
    options.training_options({"--gather-dtype", "--reduce-dtype"}, Another::told);
}
// Throws UserError if these options exclude each other.
inline void check_sent(const ZeroOptions& zero, DType gradients) {
    if (zero.sums == Sent::bf16 && gradients != DType::fp32)
        user_error("--reduce-dtype bf16: gradients are {} already", dtype_name(gradients));
}
// Returns why training is not meant to equal one device's; empty if it is.
inline std::string why_not_equal(const ZeroOptions& zero) {
    if (zero.gathers == Sent::plain && zero.sums == Sent::plain) return "";
    return "numbers that travel are rounded to fewer bits";
}

}  // namespace ultrascale::zero
