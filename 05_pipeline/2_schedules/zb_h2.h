// ZB-H2: with F = B = W and m >= 2p-1 no rank is idle between its first forward and its last W.
// More forwards before the first backward fill the bubble at the beginning, and more W's after the
// last B fill the bubble at the end:
//
//     rank 0   F0 F1 F2 F3 F4 B0 W0 F5 B1 W1 ... W5
//     rank 1      F0 F1 F2 B0 F3 B1 F4 B2 W0 F5 ...  W5
//     rank 2         F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W0 ... W5
//
// 2 (p-1-r) + 1 forwards come first (one of them with the first B), and W comes 2r micro-batches
// after B. Every rank holds the activations of 2p-1 micro-batches, about twice 1F1B's maximum.
//
// A rank's own bubble is (p-1) (F+B-2W), at least 0, for W <= F (else see formulas.h). If a barrier
// (the norm of all gradients) ends the step, the step's bubble is at least (p-1) F, because rank
// p-1 begins its first forward that much later than rank 0. Only --post-validation, with which rank
// 0 continues without waiting, saves it. With m < 2p-1 the forwards that should fill the beginning
// are missing, and ZB-H2 may be slower than ZB-H1 (F = B = W, p = 4, m = 4: 16 F, not 15). The
// README's step of 4 ranks, 1118 ms with ZB-H1, takes 1098, and 984 with --post-validation.
// Qi et al., "Zero Bubble Pipeline Parallelism", 2023 (arXiv 2401.10241), sections 2 and 4.
#pragma once

#include "zb_h1.h"

namespace ultrascale::pipeline {

inline Schedule zb_h2(int ranks, int micro_batches) {
    Schedule schedule = empty_schedule("zb-h2", micro_batches, looped(ranks, 1));
    for (int rank = 0; rank < ranks; ++rank)
        schedule.actions[size_t(rank)] =
            zero_bubble_actions(2 * (ranks - 1 - rank), 2 * rank, micro_batches);
    return schedule;
}

}  // namespace ultrascale::pipeline
