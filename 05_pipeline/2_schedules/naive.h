// Naive pipeline parallelism: one micro-batch after the other passes all stages and comes back.
// Only one rank works at a time.
//
//     rank 0   F0                   D0 F1                   D1
//     rank 1      F0             D0       F1             D1
//     rank 2         F0       D0             F1       D1
//     rank 3            F0 D0                   F1 D1
//
// A step takes m p (F+D). Each rank works for m (F+D) of it, so the bubble is m (p-1) (F+D). A rank
// holds the activations of one micro-batch.
#pragma once

#include "placement.h"
#include "rank_actions.h"

namespace ultrascale::pipeline {

inline Schedule naive(int ranks, int micro_batches) {
    Schedule schedule = empty_schedule("naive", micro_batches, looped(ranks, 1));
    for (int rank = 0; rank < ranks; ++rank) {
        RankActions actions({0});
        for (int m = 0; m < micro_batches; ++m) actions.forward(), actions.backward();
        schedule.actions[size_t(rank)] = actions.take();
    }
    return schedule;
}

}  // namespace ultrascale::pipeline
