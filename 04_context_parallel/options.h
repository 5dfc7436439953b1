// The chapter's options, and which of them exclude each other.
#pragma once

#include "comm/comm.h"
#include "context_parallel.h"
#include "report/cli.h"

namespace ultrascale {

struct Chapter {
    ContextOptions context;
    std::string layout;  // as given; empty: the variant's own
    bool compare = false;
    std::string demo;

    void add_options(OptionList& options, const Options&) {
        options
            .add("--cp", context.cp,
                 "Ranks that share each sequence; must divide the number of ranks. Default: all")
            .between(1, 1 << 20);
        options.choice("--variant", context.variant,
                       {{"ring", Variant::ring},
                        {"all-gather", Variant::all_gather},
                        {"ulysses", Variant::ulysses},
                        {"usp", Variant::usp}},
                       "How queries meet the keys of other ranks. ring: keys and values go round a "
                       "ring of ranks; all-gather: every rank gathers all of them; ulysses: each "
                       "rank trades its tokens of most heads for all tokens of some heads; usp: "
                       "ulysses inside groups, and a ring across the groups");
        options
            .add("--layout", layout,
                 "Which tokens a rank takes: contiguous, zigzag or striped. Default: zigzag; with "
                 "--variant ulysses contiguous")
            .one_of({"contiguous", "zigzag", "striped"});
        options
            .add("--ulysses", context.ulysses,
                 "With --variant usp: the number of ranks in a group that exchanges heads; must "
                 "divide "
                 "--cp")
            .between(1, 1 << 20)
            .only_if([this] { return context.variant == Variant::usp; },
                     "only --variant usp has such groups");
        options
            .choice("--tails", context.tails, {{"on", true}, {"off", false}},
                    "With --layout zigzag. on: the keys of a rank's first chunk go to the next "
                    "rank, those "
                    "of its second chunk to the previous rank, and only as far as they are needed")
            .only_if([this] { return context.has_ring(); },
                     "keys go round only with --variant ring or usp");
        options
            .choice("--ring-backward", context.backward,
                    {{"again", RingBackward::again},
                     {"reversed", RingBackward::reversed},
                     {"kept", RingBackward::kept}},
                    "Where keys begin in backward. again: at their owners, and they go round as in "
                    "forward; "
                    "reversed: where forward left them, and they go round the other way; kept: "
                    "likewise, but ranks keep their own keys, too, which then need not come back")
            .only_if([this] { return context.has_ring() && !context.tails; },
                     "only a ring (--variant ring or usp) without --tails on can choose");
        options
            .choice(
                "--merge", context.merge, {{"fp32", DType::fp32}, {"bf16", DType::bf16}},
                "The data type in which a ring adds up what attention gives for each block of keys")
            .only_if([this] { return context.has_ring(); }, "only a ring merges partial outputs");
        options
            .flag("--compare", compare,
                  "Train with each variant and layout in turn, and print one table")
            .excludes(training_outputs)
            .excludes({"--variant", "--layout", "--ulysses", "--tails", "--ring-backward",
                       "--merge", "--estimate", "--svg"});
        options
            .add("--demo", demo,
                 "ring: four ranks with four tokens each, step by step; balance: who computes how "
                 "much; merge: what rounding costs as the ring grows")
            .one_of({"ring", "balance", "merge"})
            .excludes(training_outputs)
            .excludes({"--compare", "--estimate"});
    }

    // Checks what depends on the number of ranks; the model is checked by check_shares().
    void check(const Options& options) {
        if (!demo.empty()) options.refuse_figures("--demo " + demo);
        const int ranks = Communicator::world().size();
        if (context.cp == 0) context.cp = ranks;
        if (ranks % context.cp != 0)
            user_error(
                "--cp {}: {} ranks cannot be split into groups of {}; cp must divide their number",
                context.cp, ranks, context.cp);
        if (context.cp == 1 && demo.empty() && !compare)  // no other rank to share with
            context = {.cp = 1, .layout = Layout::contiguous}, layout = "contiguous";
        complete(context, layout);
        if (options.document_token >= 0)  // ranks end with different keys, or with none
            context.backward = RingBackward::again;
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

}  // namespace ultrascale
