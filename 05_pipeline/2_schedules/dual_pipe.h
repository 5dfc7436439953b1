// DualPipe: two copies of the model, whose micro-batches enter at opposite ends of the pipeline and
// meet in the middle. Most of the time a rank has a forward of one copy and a backward of the other
// to do, and runs them together: one computes while the other's rows travel to experts (in 09,
// --ep-overlap batches). Without experts there is nothing to hide, and the two run one after the
// other. The formula below and --simulate count the pair as one action of length F&B = F + D (D: a
// whole backward, W: its part for the weights); apart, the first one's message leaves earlier, so
// that at p = 4 the ranks wait for 1 F instead of 2.
//
//     rank 0   stage 0 of copy a, stage 3 of copy b       half of the micro-batches enter here
//     rank 1   stage 1            stage 2
//     rank 2   stage 2            stage 1
//     rank 3   stage 3            stage 0                 the other half enters here
//
// p ranks and m micro-batches, both even, m >= 2p. Bubble: (p/2-1) (F&B + D - 3W), where F&B is the
// time of a forward and a backward that run together. Every rank holds the weights twice, and the
// activations of p+1 micro-batches.
// The README's step of 4 ranks, 1369 ms with 1F1B, takes 1081, of which 58 sum the copies.
// DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024 (arXiv 2412.19437), section 3.2.1.
#pragma once

#include "placement.h"
#include "rank_actions.h"

namespace ultrascale::pipeline {

// The position of a rank in DualPipe, or in DualPipeV (dual_pipe_v.h). The eight phases below are
// those into which DeepSeek-AI divide the schedule.
struct DualPipeRank {
    int below;          // ranks between this one and the turning point
    int above;          // ranks between it and the end where its first chunk's micro-batches enter
    int main_pairs;     // pairs in the main phase
    int first, second;  // its chunks: the one with which it begins, and the other
};

inline std::vector<Action> dual_pipe_actions(const DualPipeRank& at, std::vector<int> begin) {
    RankActions actions(std::move(begin));
    const int a = at.first, b = at.second;
    const auto times = [](int count, auto&& what) {
        for (int i = 0; i < count; ++i) what(i);
    };
    const auto together = [&](int forward, int backward) {
        actions.forward(forward);
        actions.with_next();
        actions.backward(backward);
    };

    // 1, 2: forwards until the second chunk's first micro-batch is back from the turning point.
    times(2 * at.below, [&](int) { actions.forward(a); });
    times(at.above + 1, [&](int) { actions.forward(a), actions.forward(b); });
    // 3: the first backwards, each split in two: nothing else can be done yet.
    times(at.below,
          [&](int) { actions.backward_input(b), actions.backward_weight(), actions.forward(b); });
    // 4: the main phase. At the turning point the first two actions run one after the other, so
    // that the ranks above wait less.
    times(at.main_pairs, [&](int i) {
        if (i == 0 && at.below == 0)
            actions.forward(a), actions.backward(b);
        else
            together(a, b);
        together(b, a);
    });
    // 5: the first chunk has no forwards left.
    times(at.below, [&](int) {
        actions.backward(b);
        together(b, a);
    });
    // 6: only backwards, split in two from the middle on.
    const int drained = at.above + 1;
    bool apart = false;
    const auto drain = [&](int chunk) {
        apart ? actions.backward_input(chunk) : actions.backward(chunk);
    };
    times(drained, [&](int i) {
        apart = apart || (i == drained / 2 && at.above % 2 == 1);
        drain(b);
        apart = apart || i == drained / 2;
        drain(a);
    });
    // 7, 8: the second halves fill the remaining slots.
    times(at.below, [&](int) { actions.backward_weight(), actions.backward_input(a); });
    actions.all_backward_weights();
    return actions.take();
}

inline Schedule dual_pipe(int ranks, int micro_batches) {
    Schedule schedule = empty_schedule("dualpipe", micro_batches, both_directions(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
        const bool upper = rank < ranks / 2;
        const int above = upper ? rank : ranks - 1 - rank;
        schedule.actions[size_t(rank)] =
            dual_pipe_actions({.below = ranks / 2 - 1 - above,
                               .above = above,
                               .main_pairs = micro_batches / 2 - ranks + above + 1,
                               .first = upper ? 0 : 1,
                               .second = upper ? 1 : 0},
                              {0, micro_batches / 2});
    }
    return schedule;
}

}  // namespace ultrascale::pipeline
