// A rank's list of actions as generators write it: micro-batches are taken in order, so that a rule
// ("three forwards, then forward and backward in turn") can be written down as it is said.
#pragma once

#include <deque>
#include <utility>

#include "core/error.h"
#include "schedule.h"

namespace ultrascale::pipeline {

class RankActions {
public:
    // The micro-batch that each chunk begins with: 0, but for the second copy of DualPipe.
    explicit RankActions(std::vector<int> first) : forward_(first), backward_(std::move(first)) {}

    void forward(int chunk = 0) { add(ActionKind::forward, forward_[size_t(chunk)]++, chunk); }
    // The whole backward of a chunk's next micro-batch.
    void backward(int chunk = 0) { add(ActionKind::backward, backward_[size_t(chunk)]++, chunk); }
    // Its first half; the second half waits in a queue.
    void backward_input(int chunk = 0) {
        const int micro_batch = backward_[size_t(chunk)]++;
        add(ActionKind::backward_input, micro_batch, chunk);
        waiting_.push_back({ActionKind::backward_weight, micro_batch, chunk});
    }
    // The half that has waited longest.
    void backward_weight() {
        if (waiting_.empty()) user_error("a schedule has a W before the B that it belongs to");
        actions_.push_back(waiting_.front());
        waiting_.pop_front();
    }
    void all_backward_weights() {
        while (!waiting_.empty()) backward_weight();
    }
    // The action added last runs together with the one that comes next.
    void with_next() { actions_.back().with_next = true; }

    std::vector<Action> take() { return std::move(actions_); }

private:
    void add(ActionKind kind, int micro_batch, int chunk) {
        actions_.push_back({kind, micro_batch, chunk});
    }
    std::vector<int> forward_, backward_;  // the next micro-batch of each chunk
    std::deque<Action> waiting_;
    std::vector<Action> actions_;
};

}  // namespace ultrascale::pipeline
