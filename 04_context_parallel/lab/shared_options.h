// The options of context parallelism that chapter 09 has, too, and the options that they exclude.
#pragma once

#include <fmt/format.h>

#include <string>

#include "../2_zigzag.h"
#include "core/error.h"
#include "lab/options/cli.h"
#include "model/config.h"
#include "model/step_shape.h"

namespace ultrascale::context_parallel {

// Whether documents or a window decide which keys travel.
inline bool leaves_keys_out(const Options& options) {
    return options.document_token >= 0 || options.config().window > 0;
}
// Whether the ring's backward works with these options.
inline bool can_run_backward(const ContextOptions& o, const Options& options) {
    return o.backward == RingBackward::restarted || !leaves_keys_out(options);
}
inline constexpr const char* why_restarted =
    "with --document-token or a window the ranks end with different keys, or with none, so the "
    "ring starts anew at the owners";

// Adds all options but --cp; `layout` is --layout's word, for complete(). Returns --ring-backward.
inline OneOption add_options(OptionList& options, ContextOptions& o, std::string& layout) {
    options.choice(
        "--variant", o.variant,
        {{"plain", Variant::plain},
         {"ring", Variant::ring},
         {"all-gather", Variant::all_gather},
         {"ulysses", Variant::ulysses},
         {"usp", Variant::usp}},
        "How queries meet the keys of other ranks. plain: keys and values go round a ring "
        "of ranks, and that is all (1_ring.h); ring: likewise, with layouts, directions, "
        "documents and three ways back; all-gather: every rank gathers all of them; ulysses: each "
        "rank trades its tokens of most heads for all tokens of some heads; usp: "
        "ulysses inside groups, and a ring across the groups");
    options
        .add("--layout", layout,
             "Which tokens a rank takes: contiguous, zigzag or striped. Default: zigzag; with "
             "--variant plain or ulysses contiguous")
        .one_of({"contiguous", "zigzag", "striped"});
    options
        .add("--ulysses", o.ulysses,
             "With --variant usp: the number of ranks in a group that exchanges heads; must "
             "divide "
             "--cp")
        .between(1, 1 << 20)
        .only_if([&o] { return o.variant == Variant::usp; }, "only --variant usp has such groups");
    options
        .choice("--bidirectional", o.bidirectional, {{"on", true}, {"off", false}},
                "With --layout zigzag. on: the keys of a rank's first chunk go to the next "
                "rank, those "
                "of its second chunk to the previous rank, and only as far as they are needed")
        .only_if([&o] { return o.has_general_ring(); },
                 "keys go both ways only with --variant ring or usp");
    options
        .choice("--merge", o.merge, {{"fp32", DType::fp32}, {"bf16", DType::bf16}},
                "The data type in which a ring adds up what attention gives for each block of keys")
        .only_if([&o] { return o.has_general_ring(); },
                 "only --variant ring or usp can round merged outputs");
    options.training_options({"--merge"}, Another::told);
    return options
        .choice("--ring-backward", o.backward,
                {{"restarted", RingBackward::restarted},
                 {"reversed", RingBackward::reversed},
                 {"kept", RingBackward::kept}},
                "Where keys begin in backward. restarted: at their owners, and they go round as in "
                "forward; "
                "reversed: where forward left them, and they go round the other way; kept: "
                "likewise, but ranks keep their own keys, too, which then need not come back")
        .only_if([&o] { return o.has_general_ring() && !o.bidirectional; },
                 "only a ring (--variant ring or usp) without --bidirectional on can choose");
}

// Sets the layout: the one that was given, or if none was, the variant's own. Throws UserError if
// the options exclude each other.
inline void complete(ContextOptions& o, const std::string& layout) {
    if (o.variant == Variant::usp && o.ulysses == 0)
        user_error("--variant usp: needs --ulysses, the number of ranks that exchange heads");
    if (o.variant == Variant::usp && o.cp % o.ulysses != 0)
        user_error("--ulysses {}: it must divide --cp {}", o.ulysses, o.cp);
    const bool pieces = o.variant == Variant::plain || o.variant == Variant::ulysses;
    o.layout = layout == "contiguous" || (layout.empty() && pieces) ? Layout::contiguous
               : layout == "striped"                                ? Layout::striped
                                                                    : Layout::zigzag;
    if (o.variant == Variant::plain) {
        o.backward = RingBackward::restarted;
        if (o.layout != Layout::contiguous)
            user_error(
                "--layout {}: --variant plain knows contiguous only; --variant ring knows all",
                layout);
    }
    if (o.variant == Variant::ulysses && o.layout != Layout::contiguous)
        user_error(
            "--layout {}: --variant ulysses gives each rank all tokens of some heads, which is "
            "balanced already; it knows contiguous only",
            layout);
    if (o.variant == Variant::all_gather && o.layout == Layout::striped)
        user_error(
            "--layout striped: --variant all-gather puts all keys in order; it knows contiguous "
            "and zigzag");
    if (o.bidirectional && o.layout != Layout::zigzag)
        user_error("--bidirectional on: only --layout zigzag has tails");
}

// Throws UserError if the masks and the variant exclude each other.
inline void check_masks(const ContextOptions& o, const Options& options) {
    const bool windowed = options.config().window > 0;
    if (o.variant == Variant::plain && o.cp > 1 && (leaves_keys_out(options) || options.prefix > 0))
        user_error(
            "{}: --variant plain lets every query see all tokens before it; use --variant ring",
            options.document_token >= 0 ? "--document-token"
            : windowed                  ? "--window"
                                        : "--prefix");
    if (o.bidirectional && options.prefix > 0)
        user_error(
            "--bidirectional on: it sends a tail only to lower ranks, but with --prefix higher "
            "ones "
            "may see it, too");
}

// "cp 4 x dp 2: ring, zigzag; backward reversed"
inline std::string describe(const ContextOptions& o, int64_t replicas) {
    if (o.cp == 1) return fmt::format("cp 1 x dp {}: each rank has whole sequences", replicas);
    std::string text =
        fmt::format("cp {} x dp {}: {}", o.cp, replicas, variant_names[int(o.variant)]);
    if (o.variant == Variant::usp)
        text += fmt::format(" (heads by {}, ring of {})", o.ulysses, o.ring_degree());
    text += fmt::format(", {}", layout_names[int(o.layout)]);
    if (o.bidirectional) text += ", bidirectional";
    if (o.has_ring() && !o.bidirectional)
        text += fmt::format("; backward {}", ring_backward_names[int(o.backward)]);
    if (o.merge != DType::fp32) text += "; merged in bf16";
    return text;
}

// A sequence's length must be a multiple of this.
inline int64_t sequence_multiple(const ContextOptions& o) {
    return SequenceCut::multiple(o.layout, o.ring_degree()) * o.ulysses_degree();
}

// Returns why u ranks cannot exchange the heads; empty if they can.
inline std::string why_no_exchange(const LlamaConfig& config, int64_t u) {
    if (u > config.heads)
        return fmt::format("there are {}, and a head is not split",
                           format_count(config.heads, "attention head"));
    if (config.heads % u != 0)
        return fmt::format("{} attention heads cannot be shared equally; it must divide them",
                           config.heads);
    if (config.kv_heads % u != 0 && u % config.kv_heads != 0)
        return fmt::format(
            "{} key-value heads can neither be shared equally nor copied equally often; it must "
            "divide their number or be a multiple of it",
            config.kv_heads);
    return "";
}

// Throws UserError if backward should make latent attention's keys again, but finds others kept: a
// ring may keep those of another rank, and an exchange of heads those of other tokens.
inline void check_made_again(const StepShape& shape, const ContextOptions& o) {
    if (o.cp > 1 && shape.config.latent && shape.model.recompute.selective_layers > 0 &&
        o.variant != Variant::plain && o.variant != Variant::all_gather)
        user_error(
            "--recompute selective: of latent attention {} keeps other keys; use --variant {}",
            variant_names[int(o.variant)], variant_names[int(Variant::all_gather)]);
}

// Throws UserError if the model's heads or sequences of `seq` tokens cannot be shared.
inline void check_shares(const LlamaConfig& config, const ContextOptions& o, int64_t seq) {
    const int64_t u = o.ulysses_degree(), multiple = sequence_multiple(o);
    if (const std::string reason = why_no_exchange(config, u); !reason.empty()) {
        const char* option =
            o.variant == Variant::usp ? "--ulysses" : "--variant ulysses with --cp";
        int64_t fewer = u - 1;  // that divide the ranks, too
        while (u % fewer != 0 || !why_no_exchange(config, fewer).empty()) --fewer;
        user_error("{} {}: {}{}", option, u, reason,
                   fewer > 1 ? fmt::format("; {} would work", fewer) : "");
    }
    if (seq % multiple != 0)
        user_error("--cp {}: sequences of {} cannot be cut {}; --seq {} would work", o.cp,
                   format_count(seq, "token"),
                   o.layout == Layout::zigzag ? "into two equal chunks a rank (zigzag)"
                                              : "into equal parts",
                   (seq + multiple - 1) / multiple * multiple);
}

}  // namespace ultrascale::context_parallel
