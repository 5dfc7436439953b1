// What a ring's plan (4_ring_plan.h) lets a rank send, counted hop by hop.
#pragma once

#include "../4_ring_plan.h"

namespace ultrascale::context_parallel {

// What a rank sends and receives in one pass round the ring (keys and values, or their gradients),
// in tokens of a KV chunk. `calls`: the hops at which it sends or receives.
struct RingTraffic {
    int64_t calls = 0, tokens = 0;
};
inline RingTraffic traffic_of_keys(const RingPlan& plan, int rank) {
    RingTraffic traffic;
    for (int hop = 0; hop <= plan.last_hop(); ++hop) {
        bool any = false;
        for (size_t p = 0; p < plan.kv_chunks(); ++p) {
            const bool sends = plan.goes_on(p, rank, hop);
            traffic.tokens += sends ? plan.tokens(p) : 0;
            any = any || sends || plan.owner(p, rank, hop + 1) != RingPlan::none;
        }
        traffic.calls += any;
    }
    return traffic;
}
// Gradients follow their keys, and go home at the end.
inline RingTraffic traffic_of_gradients(const RingPlan& plan, int rank) {
    RingTraffic traffic;
    for (int hop = 0; hop <= plan.last_hop(); ++hop) {
        bool any = false;
        for (size_t p = 0; p < plan.kv_chunks(); ++p) {
            const int owner = plan.owner(p, rank, hop);
            const bool sends =
                owner != RingPlan::none && (plan.goes_on(p, rank, hop) || owner != rank);
            const bool comes_home = plan.hops(p, rank) == hop && plan.end(p, rank) != rank;
            traffic.tokens += sends ? plan.tokens(p) : 0;
            any = any || sends || comes_home || plan.owner(p, rank, hop + 1) != RingPlan::none;
        }
        traffic.calls += any;
    }
    return traffic;
}

}  // namespace ultrascale::context_parallel
