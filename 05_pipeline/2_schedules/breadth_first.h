// Breadth-first: a rank holds v stages as in interleaved 1F1B, and passes all micro-batches through
// one of them before it begins with the next.
//
//     rank 0   F0a F1a F2a F0b F1b F2b                 D0b D1b D2b D0a D1a D2a
//     rank 1       F0a F1a F2a F0b F1b F2b D0b D1b D2b D0a D1a D2a
//
// Bubble: (p-1) (F+D)/v for m >= p; with fewer micro-batches, one comes round before the rank has
// more to do, and the bubble is longer. A rank holds the activations of all m micro-batches. In
// return, a stage's gradients are complete after one run of m backwards, and its weights are needed
// in only two runs. So sharded data parallelism (ZeRO) communicates once a stage, not once a
// micro-batch.
// Lamy-Poirier, "Breadth-First Pipeline Parallelism", 2022 (arXiv 2211.05953).
#pragma once

#include "placement.h"
#include "rank_actions.h"

namespace ultrascale::pipeline {

inline Schedule breadth_first(int ranks, int micro_batches, int chunks) {
    Schedule schedule = empty_schedule("breadth-first", micro_batches, looped(ranks, chunks));
    for (int rank = 0; rank < ranks; ++rank) {
        RankActions actions(std::vector<int>(size_t(chunks), 0));
        for (int c = 0; c < chunks; ++c)
            for (int m = 0; m < micro_batches; ++m) actions.forward(c);
        for (int c = chunks - 1; c >= 0; --c)
            for (int m = 0; m < micro_batches; ++m) actions.backward(c);
        schedule.actions[size_t(rank)] = actions.take();
    }
    return schedule;
}

}  // namespace ultrascale::pipeline
