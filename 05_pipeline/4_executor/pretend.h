// --pretend: actions and messages take a prescribed time, so ranks that share a processor show the
// bubbles of ranks that have one each.
//
// A small model is still computed, but an action ends at its start + its time, and sleeps until
// then; a message arrives at its sender's end + hop. A wait for a message sleeps, too. The result
// is the schedule's own time, with the executor's real order of messages.
#pragma once

#include <chrono>
#include <thread>

#include "../2_schedules/schedule.h"
#include "core/trace.h"

namespace ultrascale::pipeline {

struct Pretend {
    // The seconds for a p-th of the model (p: the number of ranks), and for a message. If all are
    // 0, nothing is pretended.
    double forward = 0, backward_input = 0, backward_weight = 0, hop = 0;
    bool on() const { return forward > 0; }

    // The time of an action on one of `stages` stages: with two stages a rank, half as long.
    double seconds(ActionKind kind, int ranks, int stages) const {
        const double share = double(ranks) / stages;
        switch (kind) {
            case ActionKind::forward: return forward * share;
            case ActionKind::backward_input: return backward_input * share;
            case ActionKind::backward_weight: return backward_weight * share;
            case ActionKind::backward: return (backward_input + backward_weight) * share;
        }
        return 0;
    }
};

inline void sleep_until_seconds(double seconds) {
    const std::chrono::duration<double> left(seconds - now_seconds());
    if (left.count() > 0) std::this_thread::sleep_for(left);
}

}  // namespace ultrascale::pipeline
