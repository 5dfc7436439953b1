// What the chapter's options choose.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>

#include "core/error.h"
#include "core/tensor.h"
#include "lab/options/option_list.h"

namespace ultrascale::context_parallel {

enum class Variant { ring, all_gather, ulysses, usp };
inline constexpr const char* variant_names[] = {"ring", "all-gather", "ulysses", "usp"};
enum class Layout { contiguous, zigzag, striped };  // zigzag.h
inline constexpr const char* layout_names[] = {"contiguous", "zigzag", "striped"};
// The ring's backward: keys go round as in forward, and their gradients all the way home; or it
// starts with the keys that forward held last, and runs the other way; or it does that, and the
// ranks have kept their own keys, too, which come last (ring.h).
enum class RingBackward { restarted, reversed, kept };
inline constexpr const char* ring_backward_names[] = {"restarted", "reversed", "kept"};

struct ContextOptions {
    int cp = 0;  // ranks that share each sequence; 0: all
    Variant variant = Variant::ring;
    Layout layout = Layout::zigzag;
    int ulysses = 0;             // of usp: ranks inside which heads are exchanged; 0: not usp
    bool bidirectional = false;  // a zig-zag's second chunks travel the other way (ring_plan.h)
    RingBackward backward = RingBackward::reversed;
    DType merge = DType::fp32;  // in which partial outputs are added up

    // cp = ranks in the ring x ranks that exchange heads.
    int ulysses_degree() const {
        return variant == Variant::ulysses ? cp : variant == Variant::usp ? ulysses : 1;
    }
    int ring_degree() const { return cp / ulysses_degree(); }
    bool has_ring() const { return variant == Variant::ring || variant == Variant::usp; }
};

// Whether these options of the ring's backward can be with --document-token (below 0: none).
inline bool can_run_backward(const ContextOptions& o, int64_t document_token) {
    return document_token < 0 || o.backward == RingBackward::restarted;
}
inline constexpr const char* why_restarted =
    "with --document-token the ranks end with different keys, or with none, so the ring starts "
    "anew at the owners";

// All options but --cp; `layout` is --layout's word, for complete(). Returns --ring-backward.
inline OneOption add_options(OptionList& options, ContextOptions& o, std::string& layout) {
    options.choice("--variant", o.variant,
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
        .only_if([&o] { return o.has_ring(); }, "keys go round only with --variant ring or usp");
    options
        .choice("--merge", o.merge, {{"fp32", DType::fp32}, {"bf16", DType::bf16}},
                "The data type in which a ring adds up what attention gives for each block of keys")
        .only_if([&o] { return o.has_ring(); }, "only a ring merges partial outputs");
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
        .only_if([&o] { return o.has_ring() && !o.bidirectional; },
                 "only a ring (--variant ring or usp) without --bidirectional on can choose");
}

// Sets the layout: the one that was given, or if that is empty the variant's own. UserError if the
// options exclude each other.
inline void complete(ContextOptions& o, const std::string& layout) {
    if (o.variant == Variant::usp && o.ulysses == 0)
        user_error("--variant usp: needs --ulysses, the number of ranks that exchange heads");
    if (o.variant == Variant::usp && o.cp % o.ulysses != 0)
        user_error("--ulysses {}: it must divide --cp {}", o.ulysses, o.cp);
    o.layout = layout == "contiguous" || (layout.empty() && o.variant == Variant::ulysses)
                   ? Layout::contiguous
               : layout == "striped" ? Layout::striped
                                     : Layout::zigzag;
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

}  // namespace ultrascale::context_parallel
