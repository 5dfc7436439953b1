// All forward, all backward: rank 0 sends one micro-batch after the other down the pipeline, and
// the backward begins when all have arrived.
//
//     rank 0   F0 F1 F2 F3                D0 D1 D2 D3
//     rank 1      F0 F1 F2 F3          D0 D1 D2 D3
//     rank 2         F0 F1 F2 F3    D0 D1 D2 D3
//     rank 3            F0 F1 F2 F3 D0 D1 D2 D3
//
// Bubble: (p-1) (F+D), whatever m is. A rank holds the activations of all m micro-batches.
// Huang et al., "GPipe", 2019 (arXiv 1811.06965). Backward begins with micro-batch 0, as in all
// other schedules, so that gradients are summed in the same order.
#pragma once

#include "placement.h"
#include "rank_actions.h"

namespace ultrascale::pipeline {

inline Schedule afab(int ranks, int micro_batches) {
    Schedule schedule = empty_schedule("afab", micro_batches, looped(ranks, 1));
    for (int rank = 0; rank < ranks; ++rank) {
        RankActions actions({0});
        for (int m = 0; m < micro_batches; ++m) actions.forward();
        for (int m = 0; m < micro_batches; ++m) actions.backward();
        schedule.actions[size_t(rank)] = actions.take();
    }
    return schedule;
}

}  // namespace ultrascale::pipeline
