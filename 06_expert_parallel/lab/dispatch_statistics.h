// The rows that each layer's dispatch has actually moved, and the bytes that these should have sent
// (predict.h) and held (activations.h).
#pragma once

#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "../11_fp8_dispatch.h"
#include "../expert_options.h"
#include "../row_exchange.h"
#include "comm/nodes.h"
#include "model/step_shape.h"

namespace ultrascale::expert_parallel {

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

    DispatchStatistics(const StepShape& shape, const ExpertOptions& options)
        : config_(shape.config),
          row_bytes_(travelling_bytes(shape.config.hidden, shape.model.dtype, false)),
          fp8_bytes_(travelling_bytes(shape.config.hidden, shape.model.dtype, true)),
          options_(options),
          nodes_{.ranks = options.node_size} {}

    // Counts a forward's rows and those of the backward that follows. `in_buffer`: rows arrive in a
    // buffer that stays.
    void add(const Dispatched& d, const Context& context, bool in_buffer) {
        if (!context.drops()) return;
        Rows& rows = by_micro_batch_[context.micro_batch][d.layer];
        rows = {.at_experts = d.at_experts};
        if (by_rank()) {
            int64_t tokens = d.experts.rows();
            for (const auto& [group, sizes] : d.exchanges) {
                add_copies(*group, sizes, d.backward_follows);
                rows.stages.push_back(
                    {sizes.sent(), sizes.received(), tokens * group->size(), in_buffer});
                tokens = sizes.received();
            }
            return;
        }
        int64_t sent = 0;
        for (const auto& [group, sizes] : d.exchanges) {
            if (group->size() > 1) add_choices(*group, sizes, d.backward_follows);
            sent += sizes.sent(), rows.chunks.push_back(sizes.received());
        }
        rows.stages = {{sent, d.at_experts}};
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
    void clear() {
        sent_.clear(), by_micro_batch_.clear();
        between_nodes_ = inside_nodes_ = 0;
    }

private:
    bool by_rank() const { return options_.ep > 1 && options_.dispatch == Dispatch::rank; }
    // One copy of a row for each choice, with its weight.
    void add_choices(const Communicator& ep, const SplitSizes& rows, bool backward) {
        if (options_.capacity_factor == 0) {  // each expert's count
            const int64_t here = options_.slots(config_.experts) / ep.size();
            add_one_way(ep, std::vector<int64_t>(size_t(ep.size()), here), sizeof(int32_t));
        }
        add_there_and_back(ep, rows, backward);
        add_weights(ep, rows, sizeof(float), backward);
    }
    // One copy of a row for each rank, with the numbers of k experts and their weights.
    void add_copies(const Communicator& group, const SplitSizes& rows, bool backward) {
        const int64_t n = group.size(), k = config_.experts.router.top_k;
        if (n > 1)  // every rank's counts, on all ranks
            add(group, Collective::all_gather,
                {1, n * n * int64_t(sizeof(int32_t)), double(n * (n - 1)) * sizeof(int32_t)});
        add_one_way(group, rows.to, k * int64_t(sizeof(int32_t)));
        add_weights(group, rows, k * int64_t(sizeof(float)), backward);
        add_there_and_back(group, rows, backward);
    }
    // Rows go there and back, and so do their gradients.
    void add_there_and_back(const Communicator& group, const SplitSizes& rows, bool backward) {
        add_one_way(group, rows.to, options_.fp8_rows() ? fp8_bytes_ : row_bytes_);
        if (backward)
            add_one_way(group, rows.to, options_.fp8_gradients() ? fp8_bytes_ : row_bytes_);
        add_one_way(group, rows.from, row_bytes_, backward ? 2 : 1);
    }
    // Weights go there, and their gradients back.
    void add_weights(const Communicator& group, const SplitSizes& rows, int64_t bytes,
                     bool backward) {
        add_one_way(group, rows.to, bytes);
        if (backward) add_one_way(group, rows.from, bytes);
    }
    void add_one_way(const Communicator& group, const std::vector<int64_t>& to, int64_t row_bytes,
                     int64_t times = 1) {
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
    void add(const Communicator& group, Collective kind, const Sent& more) {
        Sent& all = sent_[{group.name(), kind}];
        all.calls += more.calls, all.bytes += more.bytes, all.sent += more.sent;
    }

    LlamaConfig config_;
    int64_t row_bytes_, fp8_bytes_;
    ExpertOptions options_;
    Nodes nodes_;  // of the ranks of "ep", which are neighbours
    double between_nodes_ = 0, inside_nodes_ = 0;
    std::map<std::pair<std::string, Collective>, Sent> sent_;
    std::map<int, ByLayer> by_micro_batch_;
};

}  // namespace ultrascale::expert_parallel
