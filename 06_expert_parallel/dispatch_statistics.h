// The rows that each layer's dispatch has actually moved. They determine the bytes that the run
// should have sent, and the memory that it should have held (lab/predict.h).
#pragma once

#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "comm/nodes.h"

namespace ultrascale::expert_parallel {

// The numbers of rows for and from each rank of a group.
struct SplitSizes {
    std::vector<int64_t> to, from;
    int64_t sent() const { return std::reduce(to.begin(), to.end()); }
    int64_t received() const { return std::reduce(from.begin(), from.end()); }
};

class DispatchStatistics {
public:
    // A layer's rows in a micro-batch: those that its experts get; for each stage those that left
    // and those that arrived; and with --dispatch expert those that the experts get of each chunk.
    struct Rows {
        int64_t at_experts = 0;
        struct OfStage {
            int64_t left, arrived;
            int64_t most = left;     // that could leave
            bool in_buffer = false;  // they arrive in a buffer, not in an activation
        };
        std::vector<OfStage> stages = {};
        std::vector<int64_t> chunks = {};
    };

    // `nodes`: those of the ranks of "ep", which are neighbours.
    explicit DispatchStatistics(Nodes nodes) : nodes_(std::move(nodes)) {}

    // Says whether the next forward counts, and whether its backward will follow. `layer` counts
    // from the first one with experts.
    void begin(bool counts, bool backward_follows, int64_t layer, int micro_batch) {
        counts_ = counts, backward_ = backward_follows;
        layer_ = layer, micro_batch_ = micro_batch;
    }
    bool backward_follows() const { return counts_ && backward_; }
    // Counts rows of `row_bytes` that go there and back, and so do their gradients.
    void there_and_back(const Communicator& group, const SplitSizes& rows, int64_t row_bytes) {
        const int64_t times = backward_ ? 2 : 1;
        one_way(group, rows.to, row_bytes, times);
        one_way(group, rows.from, row_bytes, times);
    }
    void one_way(const Communicator& group, const std::vector<int64_t>& to, int64_t row_bytes,
                 int64_t times = 1) {
        if (!counts_ || times == 0) return;
        const int64_t all = std::reduce(to.begin(), to.end()) * row_bytes,
                      away = all - to[size_t(group.rank())] * row_bytes;
        add(group, Collective::all_to_all, {times, times * all, double(times) * double(away)});
        for (int r = 0; nodes_.ranks > 0 && r < group.size(); ++r) {
            if (r == group.rank()) continue;
            const bool between = group.name() == "across" ||
                                 (group.name() != "inside" && nodes_.between(r, group.rank()));
            (between ? between_nodes_ : inside_nodes_) +=
                double(times) * double(to[size_t(r)]) * double(row_bytes);
        }
    }
    // Counts the message in which each rank tells all others how many rows it has for each rank.
    void counts_of_all(const Communicator& group) {
        const int64_t n = group.size();
        if (counts_ && n > 1)
            add(group, Collective::all_gather,
                {1, n * n * int64_t(sizeof(int32_t)), double(n * (n - 1)) * sizeof(int32_t)});
    }
    // Counts a message that only a backward sends, on the way back.
    void gradient_back(const Communicator& group, const std::vector<int64_t>& from,
                       int64_t row_bytes) {
        one_way(group, from, row_bytes, backward_ ? 1 : 0);
    }
    // Counts one copy of a row for each choice, which carries its weight: rows there and back,
    // weights there, and the gradients of both in the opposite directions.
    void choices(const Communicator& group, const SplitSizes& rows, int64_t row_bytes) {
        there_and_back(group, rows, row_bytes);
        one_way(group, rows.to, sizeof(float));
        gradient_back(group, rows.from, sizeof(float));
    }
    void rows(const Rows& rows) {
        if (counts_) by_micro_batch_[micro_batch_][layer_] = rows;
    }

    // For the step that ends: the rows of each layer (by number), for each micro-batch.
    using ByLayer = std::map<int64_t, Rows>;
    std::map<int, ByLayer> end_step() { return std::exchange(by_micro_batch_, {}); }
    // The calls since the last clear(), the tensors' bytes, and how many of these left the rank, by
    // the group's name.
    struct Sent {
        int64_t calls = 0, bytes = 0;
        double sent = 0;
    };
    const std::map<std::pair<std::string, Collective>, Sent>& sent() const { return sent_; }
    // How many of these bytes went to other nodes, and to other ranks of the same node.
    double between_nodes() const { return between_nodes_; }
    double inside_nodes() const { return inside_nodes_; }
    void clear() { *this = DispatchStatistics(std::move(nodes_)); }

private:
    void add(const Communicator& group, Collective kind, const Sent& more) {
        Sent& all = sent_[{group.name(), kind}];
        all.calls += more.calls, all.bytes += more.bytes, all.sent += more.sent;
    }
    Nodes nodes_;
    double between_nodes_ = 0, inside_nodes_ = 0;
    bool counts_ = false, backward_ = false;
    int64_t layer_ = 0;
    int micro_batch_ = 0;
    std::map<std::pair<std::string, Collective>, Sent> sent_;
    std::map<int, ByLayer> by_micro_batch_;
};

}  // namespace ultrascale::expert_parallel
