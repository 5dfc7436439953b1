// Which result an action waits for, and how many activations a rank holds while it goes through its
// list. Both follow from the schedule alone, whatever the times are.
#pragma once

#include <algorithm>
#include <optional>

#include "schedule.h"

namespace ultrascale::pipeline {

// A result of one stage that an action of another stage needs. Results of an action's own stage (D
// and B need the forward, W needs B) come earlier in the rank's list, so there is nothing to wait
// for.
struct Input {
    bool backward;  // the gradient of a stage's inputs; otherwise a stage's output
    int micro_batch, stage;
    int rank;  // which has the stage
};

class Dependencies {
public:
    explicit Dependencies(const Schedule& schedule)
        : schedule_(schedule), locations_(schedule.locations()) {}

    Chunk chunk(int rank, const Action& action) const {
        return schedule_.chunks[size_t(rank)][size_t(action.chunk)];
    }
    // Empty for the first stage's forward, which reads tokens; for the last stage's backward, which
    // begins at its own loss; and for W.
    std::optional<Input> input(int rank, const Action& action) const {
        const auto [stage, copy] = chunk(rank, action);
        const bool forward = action.kind == ActionKind::forward;
        const int from = forward ? stage - 1 : stage + 1;
        if (action.kind == ActionKind::backward_weight || from < 0 || from == schedule_.stages)
            return std::nullopt;
        return Input{!forward, action.micro_batch, from,
                     locations_[size_t(copy)][size_t(from)].rank};
    }

private:
    const Schedule& schedule_;
    std::vector<std::vector<StageLocation>> locations_;
};

// How many micro-batches' activations a rank holds during each of its actions: from F until D or W
// has ended. A chunk counts as its part of a rank's share of the model: 1/v.
inline std::vector<double> in_flight(const Schedule& schedule, int rank) {
    const std::vector<Action>& actions = schedule.actions[size_t(rank)];
    std::vector<double> held(actions.size());
    int now = 0;
    for (size_t i = 0; i < actions.size();) {
        const size_t together = actions[i].with_next ? 2 : 1;
        for (size_t j = i; j < i + together; ++j) now += actions[j].kind == ActionKind::forward;
        for (size_t j = i; j < i + together; ++j)
            held[j] = double(now) * schedule.ranks() / schedule.stages;
        for (size_t j = i; j < i + together; ++j) now -= frees(actions[j].kind);
        i += together;
    }
    return held;
}
inline double peak_in_flight(const Schedule& schedule, int rank) {
    const std::vector<double> held = in_flight(schedule, rank);
    return held.empty() ? 0 : *std::ranges::max_element(held);
}

}  // namespace ultrascale::pipeline
