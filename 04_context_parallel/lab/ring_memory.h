// The buffers of 6_general_ring.h, hop by hop, from its plan: what a rank holds of other ranks'
// keys, and of gradients on their way.
#pragma once

#include "../4_ring_plan.h"

namespace ultrascale::context_parallel {

struct RingMemory {
    // Communication buffers at the peak of each pass: keys and values received; in backward also
    // gradients that have arrived.
    double communication_forward = 0, communication = 0;
    // Activations in backward. sums: at the peak of the hops, the gradients that are computed, sent
    // or home, with the rank's first keys and values. last: while the last hop is computed. home:
    // at the end.
    double sums = 0, last = 0, home = 0;
};

// kept: a reversed ring's ranks keep their own keys. again: forward keeps nothing, because it will
// run again. kv: the bytes of a rank's keys and values; sums: those of their gradients.
inline RingMemory ring_memory(const RingPlan& forward, bool reversed, bool kept, bool again,
                              int rank, double kv, double sums) {
    const RingPlan plan = reversed ? forward.reversed() : forward;
    double all = 0;  // tokens of a rank
    for (size_t p = 0; p < plan.kv_chunks(); ++p) all += double(plan.tokens(p));
    const auto held = [&](const RingPlan& of, int hop) {  // the share of a rank's tokens
        double tokens = 0;
        for (size_t p = 0; p < of.kv_chunks(); ++p)
            if (of.owner(p, rank, hop) != RingPlan::none) tokens += double(of.tokens(p));
        return tokens / all;
    };
    RingMemory m;
    double sent = 0;  // gradients of the last hop, on their way during this one
    for (int hop = 0; hop <= plan.last_hop(); ++hop) {
        // At hop 0 these are the rank's own tensors, or kept as activations.
        const auto foreign = [&](const RingPlan& of, int at) { return at == 0 ? 0 : held(of, at); };
        // Forward keeps the last ones if backward starts with them.
        const int last = forward.last_hop() - (reversed && !again ? 1 : 0);
        if (hop <= last)
            m.communication_forward =
                std::max(m.communication_forward,
                         kv * (foreign(forward, hop) + (hop < last ? held(forward, hop + 1) : 0)));
        const double arrived = std::max(foreign(plan, hop), held(plan, hop + 1));
        const auto received = [&](int at) {  // except a rank's own keys, if it has kept them
            return kept && at == plan.last_hop() ? 0 : foreign(plan, at);
        };
        const double next = hop < plan.last_hop() ? received(hop + 1) : 0;
        m.communication = std::max(m.communication, kv * (received(hop) + next) + sums * arrived);

        double now = held(plan, hop);
        m.last = sums * (sent + now) + m.home;
        m.sums = std::max(m.sums, (hop == 0 ? kv : 0) + m.last);
        for (size_t p = 0; p < plan.kv_chunks(); ++p) {
            if (plan.hops(p, rank) != hop) continue;
            m.home += sums * double(plan.tokens(p)) / all;
            if (plan.owner(p, rank, hop) == rank) now -= double(plan.tokens(p)) / all;
        }
        m.sums = std::max(m.sums, sums * now + m.home);
        sent = now;
    }
    return m;
}

}  // namespace ultrascale::context_parallel
