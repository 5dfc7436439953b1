// The chapter's options, and which of them exclude each other.
#pragma once

#include "comm/comm.h"
#include "lab/options/cli.h"
#include "shared_options.h"

namespace ultrascale::context_parallel {

struct Chapter {
    ContextOptions context;
    std::string layout;  // as given; empty: the variant's own
    bool compare = false;
    double memory_budget = 0;  // GiB; 0: none is given
    std::string demo;

    void add_options(OptionList& options, const Options& shared) {
        options
            .add("--cp", context.cp,
                 "Ranks that share each sequence; must divide the number of ranks. Default: all")
            .between(1, 1 << 20);
        ultrascale::context_parallel::add_options(options, context, layout)
            .only_if([&] { return can_run_backward(context, shared); }, why_restarted);
        options
            .flag("--compare", compare,
                  "Train with each variant and layout in turn, and print one table")
            .excludes(training_outputs)
            .excludes({"--variant", "--layout", "--ulysses", "--bidirectional", "--ring-backward",
                       "--merge", "--estimate", "--svg"});
        options
            .add("--demo", demo,
                 "ring: four ranks with four tokens each, step by step; balance: who computes how "
                 "much; merge: what rounding costs as the ring grows")
            .one_of({"ring", "balance", "merge"})
            .excludes(training_outputs)
            .excludes({"--compare", "--estimate"})
            .reads({"--json", "--html", "--svg"}, "its sizes are small enough to print");
        add_memory_budget(options, memory_budget);
    }

    // Checks what depends on the number of ranks; the model is checked by check_shares().
    void check(const Options& options) {
        if (!demo.empty()) options.refuse_figures("--demo " + demo);
        const int ranks = Communicator::world().size();
        if (context.cp == 0) context.cp = ranks;
        if (ranks % context.cp != 0)
            user_error("--cp {}: {} cannot be split into groups of {}; cp must divide their number",
                       context.cp, format_count(ranks, "rank"), context.cp);
        if (context.cp == 1 && demo.empty() && !compare)  // no other rank to share with
            context = {.cp = 1, .layout = Layout::contiguous}, layout = "contiguous";
        complete(context, layout);
        check_masks(context, options);
        if (leaves_keys_out(options)) context.backward = RingBackward::restarted;
        if (options.attention == AttentionKind::naive && context.cp > 1)
            user_error(
                "--attention naive: a rank has only some of the keys at a time, and merges "
                "what attention in tiles gives it; use --attention flash or --cp 1");
        if (options.dropout > 0 && context.layout == Layout::striped && context.cp > 1)
            user_error(
                "--dropout: with --layout striped each token would need a mask of its own; "
                "use --layout zigzag");
        if (demo != "balance" && !options.svg.empty())
            user_error("--svg has no effect: the picture is of --demo balance");
    }
};

}  // namespace ultrascale::context_parallel
