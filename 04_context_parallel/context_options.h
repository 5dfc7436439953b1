// What the chapter's options choose; the options themselves are in lab/shared_options.h.
#pragma once

#include "core/tensor.h"

namespace ultrascale::context_parallel {

enum class Variant { plain, ring, all_gather, ulysses, usp };
inline constexpr const char* variant_names[] = {"plain", "ring", "all-gather", "ulysses", "usp"};
enum class Layout { contiguous, zigzag, striped };  // 2_zigzag.h
inline constexpr const char* layout_names[] = {"contiguous", "zigzag", "striped"};
// The ring's backward: keys go round as in forward, and their gradients all the way home; or it
// starts with the keys that forward held last, and runs the other way; or it does that, and the
// ranks have kept their own keys, too, which come last (6_general_ring.h).
enum class RingBackward { restarted, reversed, kept };
inline constexpr const char* ring_backward_names[] = {"restarted", "reversed", "kept"};

struct ContextOptions {
    int cp = 0;  // ranks that share each sequence; 0: all
    Variant variant = Variant::ring;
    Layout layout = Layout::zigzag;
    int ulysses = 0;             // of usp: ranks inside which heads are exchanged; 0: not usp
    bool bidirectional = false;  // a zig-zag's second chunks travel the other way (4_ring_plan.h)
    RingBackward backward = RingBackward::reversed;
    DType merge = DType::fp32;  // in which partial outputs are added up

    // cp = ranks in the ring x ranks that exchange heads.
    int ulysses_degree() const {
        return variant == Variant::ulysses ? cp : variant == Variant::usp ? ulysses : 1;
    }
    int ring_degree() const { return cp / ulysses_degree(); }
    bool has_general_ring() const { return variant == Variant::ring || variant == Variant::usp; }
    bool has_ring() const { return variant == Variant::plain || has_general_ring(); }
};

}  // namespace ultrascale::context_parallel
