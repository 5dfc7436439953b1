// Interleaved 1F1B: a rank holds v stages of 1/v the size, and a micro-batch goes round the ranks v
// times. The pipeline fills and drains in 1/v of the time. With v = 2 and groups of N = 2:
//
//     rank 0   F0a F1a F0b F1b F2a D0b F3a D1b F2b D0a F3b D1a D2b D3b D2a D3a
//     rank 1   F0a F1a F0b D0b F1b D1b F2a D0a F3a D1a F2b D2b F3b D3b D2a D3a
//
// Micro-batches come in groups of N, p <= N <= m. A rank passes a group through chunk a, then
// through chunk b, ..., then the next group; backward does the same from the last chunk to the
// first. N = p is depth-first. The larger N, the later a message is needed, and the more
// activations a rank holds: (2 (p-1-r) + (v-1) N + 1) / v micro-batches, never more than m. Bubble:
// (p-1) (F+D)/v, where F and D are a whole rank's. There are v times as many messages.
// The README's step of 4 ranks, 1369 ms with 1F1B, takes 1184 with v = 2.
//
// m must be a multiple of N. A micro-batch is back for its next chunk after p ranks; if the last
// group had fewer than p micro-batches, a rank would have nothing to do until then.
//
// Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", 2021 (arXiv
// 2104.04473), section 2.2; a free N: "The Llama 3 Herd of Models", 2024 (2407.21783), section
// 3.3.2.
#pragma once

#include <algorithm>

#include "placement.h"

namespace ultrascale::pipeline {

// The order in which forward passes all micro-batches through the chunks; backward takes the chunks
// in reverse. A last group may have fewer than N micro-batches: schedules.h refuses it, and a test
// shows why.
inline std::vector<Action> interleaved_pass(ActionKind kind, int micro_batches, int chunks,
                                            int group) {
    // exercise 05.3 begin: groups; in a group chunk by chunk; backward from the last chunk
    std::vector<Action> pass;
    for (int first = 0; first < micro_batches; first += group)
        for (int c = 0; c < chunks; ++c)
            for (int m = first; m < std::min(first + group, micro_batches); ++m)
                pass.push_back({kind, m, kind == ActionKind::forward ? c : chunks - 1 - c});
    return pass;
    // exercise 05.3 end
}

inline Schedule interleaved(int ranks, int micro_batches, int chunks, int group) {
    Schedule schedule = empty_schedule("interleaved", micro_batches, looped(ranks, chunks));
    const std::vector<Action> forward = interleaved_pass(ActionKind::forward, micro_batches, chunks,
                                                         group),
                              backward = interleaved_pass(ActionKind::backward, micro_batches,
                                                          chunks, group);
    for (int rank = 0; rank < ranks; ++rank) {
        std::vector<Action>& actions = schedule.actions[size_t(rank)];
        const size_t warmup =
            std::min(forward.size(), size_t(2 * (ranks - 1 - rank) + (chunks - 1) * group));
        actions.assign(forward.begin(), forward.begin() + int64_t(warmup));
        for (size_t i = 0; i < forward.size(); ++i) {
            if (warmup + i < forward.size()) actions.push_back(forward[warmup + i]);
            actions.push_back(backward[i]);
        }
    }
    return schedule;
}

}  // namespace ultrascale::pipeline
