// ZB-V: zero bubble in the memory of 1F1B. A rank holds two chunks, placed as a V: rank 0 has the
// first stage and the last, so it can begin a micro-batch's backward as soon as the micro-batch has
// come back, and every rank holds activations for equally long.
//
//     rank 0   Fa Fa Fa Fa Fa Fb Bb Wb Fb Bb Wb Fb Bb Wb Fa Ba Wa Fb Bb Wb Fa ...
//     rank 1      Fa Fa Fa Fb Fa Fb Bb Wb Fb Bb Wb Fa Ba Wa Fb Bb Wb Fa Ba Wa ...
//     rank 2         Fa Fb Fa Fb Fa Fb Bb Wb Fa Ba Wa Fb Bb Wb Fa Ba Wa Fb ...
//
// Warm-up: 2 (p-r) - 1 times Fa; r times Fb Fa; p-r times Fb Bb Wb. Then Fa Ba Wa and Fb Bb Wb in
// turn. At the end B's come first: r times Ba Bb, then p-r times Ba Wa, then the remaining W's. A
// rank's own bubble is 0 at F = B = W; every rank holds p micro-batches. If m < 2p, the rule for 2p
// micro-batches applies, without the micro-batches that do not exist. The README's step of 4 ranks,
// 1118 ms with ZB-H1 and as many activations, takes 1062.
// Qi et al., "Pipeline Parallelism with Controllable Memory", 2024 (arXiv 2405.15362).
#pragma once

#include <algorithm>

#include "placement.h"

namespace ultrascale::pipeline {

inline std::vector<Action> zbv_actions(int ranks, int rank, int micro_batches) {
    const int planned = std::max(micro_batches, 2 * ranks);
    std::vector<Action> actions;
    int next_f[2] = {}, next_b[2] = {}, next_w[2] = {};  // of chunk a, chunk b
    const auto f = [&](int c) { actions.push_back({ActionKind::forward, next_f[c]++, c}); };
    const auto b = [&](int c) { actions.push_back({ActionKind::backward_input, next_b[c]++, c}); };
    const auto w = [&](int c) { actions.push_back({ActionKind::backward_weight, next_w[c]++, c}); };

    // exercise 05.6 begin: fill, run in turn, drain: the rule is in the comment above
    for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) f(0);
    for (int i = 0; i < rank; ++i) f(1), f(0);
    for (int i = 0; i < ranks - rank; ++i) f(1), b(1), w(1);
    while (next_f[1] < planned) {
        if (next_f[0] < planned) f(0);
        b(0), w(0);
        f(1), b(1), w(1);
    }
    for (int i = 0; i < rank; ++i) b(0), b(1);
    for (int i = 0; i < ranks - rank; ++i) b(0), w(0);
    while (next_w[1] < planned) w(1);
    while (next_w[0] < planned) w(0);
    // exercise 05.6 end
    std::erase_if(actions,
                  [&](const Action& action) { return action.micro_batch >= micro_batches; });
    return actions;
}

inline Schedule zbv(int ranks, int micro_batches) {
    Schedule schedule = empty_schedule("zbv", micro_batches, v_shaped(ranks));
    for (int rank = 0; rank < ranks; ++rank)
        schedule.actions[size_t(rank)] = zbv_actions(ranks, rank, micro_batches);
    return schedule;
}

}  // namespace ultrascale::pipeline
