// A capacity: every expert takes at most C = ceil(factor * N k / E) of a rank's N k choices, and
// drops the rest (GShard, Lepikhin et al. 2020). A dropped choice adds nothing to its token, whose
// row still passes by in the residual stream.
//
//     rows: E blocks of C, used or not          all-to-all of equal blocks: no counts
//     | e0 : C | e1 : C | e2 : C | e3 : C | --> rank 0 gets e0, e1 of all ranks, rank 1 e2, e3
//
// All sizes are known in advance. So the host never waits for the device, which is why this way was
// used first; the price is what is dropped where a router is uneven, and the places that nobody
// uses, which travel and are computed like all others. Which choices are dropped depends on how the
// batch is cut: a rank counts its own tokens of a micro-batch only.
#pragma once

#include "dispatch.h"

namespace ultrascale {

// What the layers share: how blocks that came from each rank are put in the experts' order, and the
// counts of choices, from which what was dropped follows.
class CapacityPlan {
public:
    CapacityPlan(int64_t ranks, int64_t experts)
        : blocks_(std::vector<int32_t>(size_t(experts), 1), ranks, experts / ranks) {}
    const RowsByExpert& blocks() const { return blocks_; }  // of C rows

    void count(const Tensor& counts, int64_t capacity) { counted_.emplace_back(counts, capacity); }
    // Choices and those dropped, since the last call.
    struct Dropped {
        int64_t choices = 0, dropped = 0;
    };
    Dropped end_step() {
        Dropped sum;
        for (const auto& [counts, capacity] : std::exchange(counted_, {}))
            for (const int64_t n : counts.to_host<int32_t>()) {
                sum.choices += n;
                sum.dropped += std::max<int64_t>(n - capacity, 0);
            }
        return sum;
    }

private:
    RowsByExpert blocks_;
    std::vector<std::pair<Tensor, int64_t>> counted_;
};

class CapacityJourney : public Journey {
public:
    // `capacity`: rows an expert takes from this rank.
    CapacityJourney(const Communicator& ep, int64_t experts, int64_t capacity, Drop drop,
                    CapacityPlan& plan, Traffic& traffic, Stream* stream)
        : ep_(ep),
          experts_(experts),
          capacity_(capacity),
          drop_(drop),
          plan_(plan),
          traffic_(traffic),
          stream_(stream) {}

    ExpertRows send(const Tensor& x, const Routed& routed, const Meanwhile& meanwhile) override {
        const int64_t R = routed.experts.numel(), h = x.cols(), ranks = ep_.size(),
                      places = experts_ * capacity_;
        place_ = activation(routed.experts.shape(), DType::int32);
        const Tensor rows = activation({places, h}, x.dtype());
        {
            const Tensor counts = Tensor::empty({experts_}, DType::int32, Memory::workspace),
                         sorted = activation({R}, DType::int32), at = activation_like(sorted),
                         order = activation({places}, DType::int32);
            ops::sort_by_expert(counts, sorted, at, routed.experts);
            ops::capacity_slots(order, place_, routed.experts, sorted, at, counts,
                                drop_ == Drop::by_score ? routed.weights : Tensor());
            ops::gather_rows(rows, x, order, routed.experts.cols());
            if (traffic_.backward_follows()) plan_.count(counts, capacity_);
        }
        const std::vector<int32_t> each(size_t(experts_ / ranks), int32_t(ranks * capacity_));
        const Tensor counts =
            Tensor::from_host<int32_t>(each, {int64_t(each.size())}, Memory::workspace);
        traffic_.rows({places, {{places, places}}});
        const std::vector<int64_t> equal(size_t(ranks), places / ranks);
        travel_ = {equal, equal};
        if (ranks == 1) {
            if (meanwhile) meanwhile();
            return {rows, counts};
        }
        traffic_.there_and_back(ep_, travel_, h * dtype_bytes(x.dtype()));
        return {plan_.blocks().in_order(exchange(rows, meanwhile)), counts};
    }
    Tensor places() const override { return place_; }
    void combine(Tensor y, Tensor out, const Routed& routed, const Tensor& residual) override {
        rows_ = back(std::move(out));
        ops::sum_rows(y, rows_, place_, routed.weights, residual);
    }
    Tensor combine_backward(const Tensor& dy, Tensor dweights, const Tensor& weights,
                            const Meanwhile& meanwhile) override {
        Tensor drows = activation_like(rows_);
        ops::fill(drows, 0);  // places that nobody uses
        ops::sum_rows_backward(drows, dweights, dy, rows_, place_, weights);
        rows_ = {};
        if (ep_.size() == 1) {
            if (meanwhile) meanwhile();
            return drows;
        }
        const Tensor in = exchange(drows, meanwhile);
        drows = {};
        return plan_.blocks().in_order(in);
    }
    void send_backward(Tensor dx, Tensor drows) override {
        ops::sum_rows(dx, back(std::move(drows)), place_, {}, dx);
    }

private:
    Tensor exchange(const Tensor& rows, const Meanwhile& meanwhile) const {
        const Tensor in = activation_like(rows);
        exchange_rows(ep_, in, rows, travel_.to, travel_.from, stream_, meanwhile);
        return in;
    }
    Tensor back(Tensor rows) const {
        if (ep_.size() == 1) return rows;
        const Tensor out = plan_.blocks().as_they_came(rows);
        rows = {};
        return exchange(out, {});
    }

    const Communicator& ep_;
    int64_t experts_, capacity_;
    Drop drop_;
    CapacityPlan& plan_;
    Traffic& traffic_;
    Stream* stream_;
    Travel travel_;
    Tensor place_, rows_;  // (N, k); (E C, h)
};

}  // namespace ultrascale
