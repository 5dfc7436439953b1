// DualPipeV: DualPipe cut in half. DualPipe's two directions do the same things, so half of its
// ranks suffice if each passes its micro-batches to itself at the turning point: one copy of the
// model, two chunks a rank, placed as in a V.
//
//     rank 0   stages 0 and 7            micro-batches enter here, and their losses come back
//     rank 1   stages 1 and 6
//     rank 2   stages 2 and 5
//     rank 3   stages 3 and 4
//
// m >= 2p. The bubble is that of DualPipe on 2p ranks, (p-1) (F&B + D - 3W) with the times of a
// chunk. The activations are those of 2p+1 chunks of half a rank: p + 1/2 micro-batches.
// The README's step of 4 ranks, 1081 ms with DualPipe, takes 1057.
// Qi, Wan and Lin, "DualPipe Could Be Better Without the Dual", 2025; DeepSeek-AI's implementation,
// 2025 (github.com/deepseek-ai/DualPipe).
#pragma once

#include "dual_pipe.h"

namespace ultrascale::pipeline {

inline Schedule dual_pipe_v(int ranks, int micro_batches) {
    Schedule schedule = empty_schedule("dualpipev", micro_batches, v_shaped(ranks));
    for (int rank = 0; rank < ranks; ++rank)
        schedule.actions[size_t(rank)] =
            dual_pipe_actions({.below = ranks - 1 - rank,
                               .above = rank,
                               .main_pairs = micro_batches - 2 * ranks + rank + 1,
                               .first = 0,
                               .second = 1},
                              {0, 0});
    return schedule;
}

}  // namespace ultrascale::pipeline
