// What travelled: the rows of each layer's dispatch, as its counts really came. From them follow
// the bytes that the run should have sent, and the memory that it should have held (predict.h).
#pragma once

#include <map>
#include <numeric>
#include <vector>

#include "comm/comm.h"
#include "report/prediction.h"

namespace ultrascale {

// Rows for and from each rank of a group.
struct Travel {
    std::vector<int64_t> to, from;
    int64_t sent() const { return std::reduce(to.begin(), to.end()); }
    int64_t received() const { return std::reduce(from.begin(), from.end()); }
};

class Traffic {
public:
    // A layer's rows in a micro-batch: as its experts get them; and, of trips in one or two hops,
    // those that left and those that arrived.
    struct Rows {
        int64_t at_experts = 0, left = 0, arrived = 0;
    };

    // Whether the forward that runs now counts, and whether its backward will follow. `layer` counts
    // from the first one with experts.
    void begin(bool counts, bool backward_follows, int64_t layer, int micro_batch) {
        counts_ = counts, backward_ = backward_follows;
        layer_ = layer, micro_batch_ = micro_batch;
    }
    // Rows of `row_bytes` go there and back, and so do their gradients.
    void there_and_back(const Communicator& group, const Travel& rows, int64_t row_bytes) {
        const int64_t times = backward_ ? 2 : 1;
        one_way(group, rows.to, row_bytes, times);
        one_way(group, rows.from, row_bytes, times);
    }
    void one_way(const Communicator& group, const std::vector<int64_t>& to, int64_t row_bytes,
                 int64_t times = 1) {
        if (!counts_) return;
        const int64_t all = std::reduce(to.begin(), to.end()) * row_bytes,
                      away = all - to[size_t(group.rank())] * row_bytes;
        sent_.add(group, Collective::all_to_all,
                  {times, times * all, double(times) * double(away)});
    }
    void rows(const Rows& rows) {
        if (counts_) by_micro_batch_[micro_batch_][layer_] = rows;
    }

    // Of the step that ends: the rows of each layer (by number), for each micro-batch.
    using ByLayer = std::map<int64_t, Rows>;
    std::map<int, ByLayer> end_step() { return std::exchange(by_micro_batch_, {}); }
    const PredictedCommunication& sent() const { return sent_; }  // since the last clear()
    void clear() { sent_ = {}, by_micro_batch_ = {}; }

private:
    bool counts_ = false, backward_ = false;
    int64_t layer_ = 0;
    int micro_batch_ = 0;
    PredictedCommunication sent_;
    std::map<int, ByLayer> by_micro_batch_;
};

}  // namespace ultrascale
