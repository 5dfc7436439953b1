// One forward, one backward as data: the order of 1_plain_1f1b.h, written down as a list for each
// rank. The list can be checked and simulated before anything runs, and the executor that runs it
// also runs every other order. A rank starts just enough micro-batches to fill the pipeline below
// it, then does the backward of one before it starts another.
//
//     rank 0   F0 F1 F2 F3          D0 F4 D1 F5 D2    D3    D4 D5
//     rank 1      F0 F1 F2       D0 F3 D1 F4 D2 F5 D3    D4 D5
//     rank 2         F0 F1    D0 F2 D1 F3 D2 F4 D3 F5 D4 D5
//     rank 3            F0 D0 F1 D1 F2 D2 F3 D3 F4 D4 F5 D5
//
// Bubble: (p-1) (F+D), as with all forward, all backward. But rank r holds the activations of only
// min(p-r, m) micro-batches, which do not grow with m.
//
// If a message takes time c to arrive, every micro-batch costs 2 (p-1) c/p more: rank 0's next F
// waits for a D, whose micro-batch went down all ranks as F and came up again as D. These are 2
// (p-1) hops, and p micro-batches share the round trip.
// Narayanan et al., "PipeDream", 2019 (arXiv 1806.03377); "PipeDream-Flush", 2021 (2006.09503).
#pragma once

#include <algorithm>

#include "placement.h"
#include "rank_actions.h"

namespace ultrascale::pipeline {

inline Schedule one_f_one_b(int ranks, int micro_batches) {
    Schedule schedule = empty_schedule("1f1b", micro_batches, looped(ranks, 1));
    for (int rank = 0; rank < ranks; ++rank) {
        // exercise 05.1 begin: warm up; then one forward, one backward; then the rest
        const int warmup = std::min(ranks - 1 - rank, micro_batches);
        RankActions actions({0});
        for (int m = 0; m < warmup; ++m) actions.forward();
        for (int m = warmup; m < micro_batches; ++m) actions.forward(), actions.backward();
        for (int m = 0; m < warmup; ++m) actions.backward();
        // exercise 05.1 end
        schedule.actions[size_t(rank)] = actions.take();
    }
    return schedule;
}

}  // namespace ultrascale::pipeline
