// A generator's list of a rank's actions. Micro-batches are taken in order, so a rule ("three
// forwards, then forward and backward in turn") can be written down as it is said.
#pragma once

#include <deque>
#include <utility>

#include "core/error.h"
#include "schedule.h"

namespace ultrascale::pipeline {

class RankActions {
public:
    // The micro-batch with which each chunk begins: 0, except for DualPipe's second copy.
    explicit RankActions(std::vector<int> first) : forward_(first), backward_(std::move(first)) {}

    void forward(int chunk = 0) { add(ActionKind::forward, forward_[size_t(chunk)]++, chunk); }
    // Adds the whole backward of a chunk's next micro-batch.
    void backward(int chunk = 0) { add(ActionKind::backward, backward_[size_t(chunk)]++, chunk); }
    // Adds the first half of a backward; the second half waits in a queue.
    void backward_input(int chunk = 0) {
        const int micro_batch = backward_[size_t(chunk)]++;
        add(ActionKind::backward_input, micro_batch, chunk);
        waiting_.push_back({ActionKind::backward_weight, micro_batch, chunk});
    }
    // Adds the half that has waited longest.
    void backward_weight() {
        if (waiting_.empty()) user_error("a schedule has a W before the B that it belongs to");
        actions_.push_back(waiting_.front());
        waiting_.pop_front();
    }
    void all_backward_weights() {
        while (!waiting_.empty()) backward_weight();
    }
    // Lets the action added last run together with the next one.
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
