// ZB-H1: backward is split in two. The rank above waits only for the gradient of inputs (B); the
// gradient of weights (W) waits until there is no other work for the rank.
//
//     rank 0   F0 F1 F2                B0 W0 B1 W1 B2 W2
//     rank 1      F0 F1             B0 F2 B1 W0 B2 W1 W2
//     rank 2         F0          B0 F1 B1 F2 B2 W0 W1 W2          (the order, not the time)
//
// Warm-up as in 1F1B: p-1-r forwards; then F and B in turn, and W from the r-th pair on. Rank r's W
// lags r micro-batches behind, so every rank holds the activations of p micro-batches, 1F1B's
// maximum. Bubble: (p-1) (F+B-W), for B >= W and m >= p. It also runs with fewer micro-batches.
// The README's step of 4 ranks, 1369 ms with 1F1B, takes 1118.
// Qi et al., "Zero Bubble Pipeline Parallelism", 2023 (arXiv 2401.10241), section 2.
#pragma once

#include <algorithm>

#include "placement.h"
#include "rank_actions.h"

namespace ultrascale::pipeline {

// A rank's actions: `warmup` forwards; then F and B in turn; W comes `lag` micro-batches after B.
inline std::vector<Action> zero_bubble_actions(int warmup, int lag, int micro_batches) {
    // exercise 05.2 begin: F and B in turn, W `lag` micro-batches later
    RankActions actions({0});
    const int ahead = std::min(warmup, micro_batches);
    for (int m = 0; m < ahead; ++m) actions.forward();
    for (int m = 0; m < micro_batches; ++m) {
        if (ahead + m < micro_batches) actions.forward();
        actions.backward_input();
        if (m >= lag) actions.backward_weight();
    }
    actions.all_backward_weights();
    return actions.take();
    // exercise 05.2 end
}

inline Schedule zb_h1(int ranks, int micro_batches) {
    Schedule schedule = empty_schedule("zb-h1", micro_batches, looped(ranks, 1));
    for (int rank = 0; rank < ranks; ++rank)
        schedule.actions[size_t(rank)] = zero_bubble_actions(ranks - 1 - rank, rank, micro_batches);
    return schedule;
}

}  // namespace ultrascale::pipeline
