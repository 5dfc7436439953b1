// A capacity: every expert accepts at most C = ceil(factor * N k / E) of a rank's N k choices, and
// drops the rest (GShard, Lepikhin et al. 2020). A dropped choice adds nothing to its token, whose
// row still passes the layer in the residual stream.
//
//     rows: E blocks of C, used or not          all-to-all of equal blocks: no counts
//     | e0 : C | e1 : C | e2 : C | e3 : C | --> rank 0 gets e0, e1 of all ranks, rank 1 e2, e3
//
// All sizes are known in advance. So the host never waits for the device, which is why this way was
// used first. The price: choices are dropped if a router is uneven, and unused places travel and
// are computed like all others. Which choices are dropped depends on how the batch is cut: a rank
// counts only its own tokens of a micro-batch.
#pragma once

#include "6_dispatch.h"
#include "kernels/ops_experts.h"

namespace ultrascale::expert_parallel {

class CapacityDispatcher : public ChoiceDispatcher {
public:
    // `capacity_of`: how many rows an expert accepts for this many tokens. `blocks`: an order for
    // one row from each rank for each expert, for blocks of C rows instead.
    CapacityDispatcher(const Communicator& ep, int64_t experts, int64_t chunks, Stream& stream,
                       std::function<int64_t(int64_t tokens)> capacity_of, Drop drop,
                       std::shared_ptr<const RowsByExpert> blocks)
        : ChoiceDispatcher(ep, experts, chunks, stream),
          capacity_of_(std::move(capacity_of)),
          drop_(drop),
          blocks_(std::move(blocks)) {}

    void permute(const Tensor& x, const Routed& routed) override {
        const int64_t k = routed.experts.cols(), ranks = ep_.size();
        cut(x.rows(), [&](int64_t tokens) { return experts_ * capacity_of_(tokens); });
        row_map_ = activation(routed.experts.shape(), DType::int32);
        allocate_rows(x);
        for (Chunk& chunk : chunks_) {
            const int64_t rows = chunk.rows.size(), capacity = rows / experts_;
            const Tensor counts = Tensor::empty({experts_}, DType::int32, Memory::workspace),
                         sorted = activation({chunk.tokens.size() * k}, DType::int32),
                         position = activation_like(sorted), experts = of(routed.experts, chunk);
            ops::sort_by_expert(counts, sorted, position, experts);
            ops::capacity_slots(of(row_map_, chunk), experts, sorted, position, counts, capacity,
                                drop_ == Drop::by_score ? of(routed.weights, chunk) : Tensor());
            set_rows(chunk, x, routed);
            accepted_.push_back({counts, capacity});
            const std::vector<int32_t> each(size_t(experts_ / ranks), int32_t(ranks * capacity));
            chunk.counts =
                Tensor::from_host<int32_t>(each, {int64_t(each.size())}, Memory::workspace);
            const std::vector<int64_t> equal(size_t(ranks), rows / ranks);
            chunk.split_sizes = {equal, equal};
            chunk.by_expert = blocks_;
        }
    }
    Dispatched dispatched(int64_t layer, bool backward_follows, Tensor experts) const override {
        Dispatched d = ChoiceDispatcher::dispatched(layer, backward_follows, std::move(experts));
        d.accepted = accepted_;
        return d;
    }

private:
    bool may_drop() const override { return true; }
    std::function<int64_t(int64_t)> capacity_of_;
    Drop drop_;
    std::shared_ptr<const RowsByExpert> blocks_;
    std::vector<Dispatched::Accepted> accepted_;
};

}  // namespace ultrascale::expert_parallel
