// 1F1B whose forward and backward run together: when one sends rows to their experts, the other one
// computes (--ep-overlap batches; 06_expert_parallel/10_overlap_batches.h). DualPipe (dual_pipe.h)
// is made of such pairs, too; this schedule holds one copy of the model.
//
//     rank 0   F0 F1 F2 F3 F4       F5+D0 F6+D1 F7+D2 D3 ...
//     rank 1      F0 F1 F2    F3+D0 F4+D1 F5+D2 F6+D3 ...
//     rank 2         F0 F1+D0 F2+D1 F3+D2 F4+D3 F5+D4 ...
//
// Both results of a pair leave when it has ended. So gradients that go up and outputs that go down
// both reach the next rank a whole pair later: a rank must be two micro-batches ahead of the one
// below it, not one as in 1F1B. (With one, every rank would idle for as long as a pair after each
// pair.) Rank r keeps up to 2 (p-r) micro-batches. A step takes p (F+D) + (m-1) P, where P is the
// time of a pair: 1F1B's if P = F+D. Rank 0's first 2p-1 forwards and its last 2p-1 backwards have
// no partner, and hide nothing.
#pragma once

#include "one_f_one_b.h"

namespace ultrascale::pipeline {

inline Schedule one_f_one_b_overlap(int ranks, int micro_batches) {
    Schedule schedule = empty_schedule("1f1b-overlap", micro_batches, looped(ranks, 1));
    for (int rank = 0; rank < ranks; ++rank) {
        const int warmup = std::min(2 * (ranks - 1 - rank) + 1, micro_batches);
        RankActions actions({0});
        for (int m = 0; m < warmup; ++m) actions.forward();
        for (int m = warmup; m < micro_batches; ++m)
            actions.forward(), actions.with_next(), actions.backward();
        for (int m = 0; m < warmup; ++m) actions.backward();
        schedule.actions[size_t(rank)] = actions.take();
    }
    return schedule;
}

}  // namespace ultrascale::pipeline
