// Dispatch and combine: each token's row travels to the ranks of its experts, and what they compute
// travels back and is summed. One copy of the row for each choice (--dispatch expert):
//
//     rank 0                                rank 1
//     x: N rows                             x: N rows
//     sort: a row for each choice           ...
//     | to 0 | to 1 | ---- all-to-all ----- | to 0 | to 1 |       uneven: counts go first
//     | of 0 | of 1 |  sort by expert       | of 0 | of 1 |
//       experts 0, 1                          experts 2, 3
//     | of 0 | of 1 | ---- all-to-all ----- | of 0 | of 1 |       the same rows, back
//     y: each token gathers its k rows and adds them in order, times their weights
//
// The pair is conjugate: the backward of a dispatch is a combine of gradients (without weights),
// the backward of a combine is a dispatch (with them). So a layer has four all-to-alls of rows, of
// T k h elements each, of which (n-1)/n leave the rank. GShard, Lepikhin et al. 2020.
//
// An expert sees its rows by rank and, within a rank, by token: the order of all tokens in the
// step's batch, whatever the number of ranks. With sums in a fixed order this gives the same bits
// everywhere. The host has to wait for the counts once a forward, to know how much memory the rows
// need. capacity.h does without.
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "comm/comm.h"
#include "core/error.h"
#include "core/trace.h"
#include "router.h"
#include "traffic.h"

namespace ultrascale {

// What this rank's experts compute on.
struct ExpertRows {
    Tensor rows, counts;  // (R, h) in the experts' order; (G) int32 rows of each of its experts
};

// The rows of one micro-batch on their way through a layer: to their experts and back, and the same
// way again with gradients. It holds what the way back needs. `meanwhile` runs while rows travel.
class Journey {
public:
    using Meanwhile = std::function<void()>;
    virtual ~Journey() = default;
    // x (N, h) -> rows (R, h)
    virtual ExpertRows send(const Tensor& x, const Routed& routed, const Meanwhile& meanwhile) = 0;
    // (N, k): where the row of each choice is, -1 if it was dropped. Empty: none can be.
    virtual Tensor places() const { return {}; }
    // out (R, h) -> y (N, h): residual + each token's weighted sum. y may be the residual.
    virtual void combine(Tensor y, Tensor out, const Routed& routed, const Tensor& residual) = 0;
    // dy (N, h) -> gradients of out (R, h), which is returned, and of the weights (N, k)
    virtual Tensor combine_backward(const Tensor& dy, Tensor dweights, const Tensor& weights,
                                    const Meanwhile& meanwhile) = 0;
    // drows (R, h) -> dx (N, h) += the gradient of x
    virtual void send_backward(Tensor dx, Tensor drows) = 0;
};

// An all-to-all of rows, over all ranks of `group`; `stream` may be one of communication.
inline Work exchange_rows(const Communicator& group, const Tensor& out, const Tensor& in,
                          const std::vector<int64_t>& to, const std::vector<int64_t>& from,
                          Stream& stream = compute_stream()) {
    std::vector<int64_t> send(to), receive(from);
    for (int64_t& n : send) n *= in.cols();
    for (int64_t& n : receive) n *= out.cols();
    return group.all_to_all(out, in, std::move(send), std::move(receive), stream);
}

// The host waits until the device has computed `counts`; --trace shows it as a span.
inline std::vector<int32_t> read_counts(const Tensor& counts) {
    const OpSpan span("host waits for counts", 0, 0, "host");
    return counts.to_host<int32_t>();
}

// Rows that came from each rank in the order of its experts, put in this rank's order of experts,
// and back.
class RowsByExpert {
public:
    // n (ranks, G): rows from each rank for each of this rank's experts.
    RowsByExpert(const std::vector<int32_t>& n, int64_t ranks, int64_t G) {
        std::vector<int64_t> first(n.size() + 1, 0);
        std::partial_sum(n.begin(), n.end(), first.begin() + 1, std::plus<int64_t>());
        std::vector<int32_t> index, inverse(size_t(first.back())), counts(size_t(G), 0);
        for (int64_t g = 0; g < G; ++g)
            for (int64_t r = 0; r < ranks; ++r) {
                const size_t i = size_t(r * G + g);
                counts[size_t(g)] += n[i];
                for (int64_t row = first[i]; row < first[i] + n[i]; ++row) {
                    inverse[size_t(row)] = int32_t(index.size());
                    index.push_back(int32_t(row));
                }
            }
        const auto on_device = [](const std::vector<int32_t>& v) {
            return Tensor::from_host<int32_t>(v, {int64_t(v.size())}, Memory::workspace);
        };
        counts_ = on_device(counts);
        if (G == 1 || ranks == 1) return;  // they are in order
        index_ = on_device(index), inverse_ = on_device(inverse);
    }
    const Tensor& counts() const { return counts_; }  // (G)
    Tensor in_order(const Tensor& rows) const { return gathered(rows, index_); }
    Tensor as_they_came(const Tensor& rows) const { return gathered(rows, inverse_); }

private:
    static Tensor gathered(const Tensor& rows, const Tensor& index) {
        if (!index) return rows;
        const Tensor out = activation_like(rows);
        ops::gather_rows(out, rows, index);
        return out;
    }
    Tensor counts_, index_, inverse_;
};

// Runs an all-to-all and something else: on the stream for communication if there is one, else one
// after the other.
inline void exchange_rows(const Communicator& group, const Tensor& out, const Tensor& in,
                          const std::vector<int64_t>& to, const std::vector<int64_t>& from,
                          Stream* stream, const Journey::Meanwhile& meanwhile) {
    Work work = exchange_rows(group, out, in, to, from, stream ? *stream : compute_stream());
    if (meanwhile) meanwhile();
    work.wait();
}

inline std::vector<int64_t> rows_by_rank(const std::vector<int32_t>& counts, int64_t ranks) {
    std::vector<int64_t> rows;
    const auto each = std::ptrdiff_t(counts.size()) / ranks;
    for (auto at = counts.begin(); at != counts.end(); at += each)
        rows.push_back(std::reduce(at, at + each, int64_t(0)));
    return rows;
}

class ExpertJourney : public Journey {
public:
    // `ep`: the ranks that share E experts, of which each holds E / ep neighbouring ones. `stream`:
    // for communication; nullptr: nothing overlaps.
    ExpertJourney(const Communicator& ep, int64_t experts, Traffic& traffic, Stream* stream)
        : ep_(ep), experts_(experts), traffic_(traffic), stream_(stream) {}

    ExpertRows send(const Tensor& x, const Routed& routed, const Meanwhile& meanwhile) override {
        const int64_t R = routed.experts.numel(), h = x.cols(), ranks = ep_.size(),
                      here = experts_ / ranks;
        const Tensor counts = Tensor::empty({experts_}, DType::int32, Memory::workspace);
        place_ = activation(routed.experts.shape(), DType::int32);
        Tensor rows = activation({R, h}, x.dtype());
        {
            const Tensor order = activation({R}, DType::int32);
            ops::sort_by_expert(counts, order, place_, routed.experts);
            ops::gather_rows(rows, x, order, routed.experts.cols());
        }
        if (ranks == 1) {
            traffic_.rows({R, {{R, R}}});
            if (meanwhile) meanwhile();
            return {rows, counts};
        }
        const Tensor counts_in = Tensor::empty({ranks, here}, DType::int32, Memory::workspace);
        ep_.all_to_all(counts_in, counts);
        const std::vector<int32_t> mine = read_counts(counts), theirs = read_counts(counts_in);
        travel_ = {rows_by_rank(mine, ranks), rows_by_rank(theirs, ranks)};
        by_expert_.emplace(theirs, ranks, here);
        traffic_.one_way(ep_, std::vector<int64_t>(size_t(ranks), here), sizeof(int32_t));
        traffic_.there_and_back(ep_, travel_, h * dtype_bytes(x.dtype()));
        traffic_.rows({travel_.received(), {{R, travel_.received()}}});
        const Tensor in = activation({travel_.received(), h}, x.dtype());
        exchange_rows(ep_, in, rows, travel_.to, travel_.from, stream_, meanwhile);
        rows = {};
        return {by_expert_->in_order(in), by_expert_->counts()};
    }

    void combine(Tensor y, Tensor out, const Routed& routed, const Tensor& residual) override {
        rows_ = ep_.size() == 1 ? out : back(std::move(out));
        ops::sum_rows(y, rows_, place_, routed.weights, residual);
    }

    Tensor combine_backward(const Tensor& dy, Tensor dweights, const Tensor& weights,
                            const Meanwhile& meanwhile) override {
        Tensor drows = activation_like(rows_);
        ops::sum_rows_backward(drows, dweights, dy, rows_, place_, weights);
        rows_ = {};
        if (ep_.size() == 1) {
            if (meanwhile) meanwhile();
            return drows;
        }
        const Tensor in = activation({travel_.received(), drows.cols()}, drows.dtype());
        exchange_rows(ep_, in, drows, travel_.to, travel_.from, stream_, meanwhile);
        drows = {};
        return by_expert_->in_order(in);
    }

    void send_backward(Tensor dx, Tensor drows) override {
        if (ep_.size() > 1) drows = back(std::move(drows));
        ops::sum_rows(dx, drows, place_, {}, dx);
    }

private:
    // Rows in the experts' order, brought back to the ranks that they came from.
    Tensor back(Tensor rows) const {
        const Tensor out = by_expert_->as_they_came(rows);
        rows = {};
        const Tensor in = activation({travel_.sent(), out.cols()}, out.dtype());
        exchange_rows(ep_, in, out, travel_.from, travel_.to);
        return in;
    }

    const Communicator& ep_;
    int64_t experts_;
    Traffic& traffic_;
    Stream* stream_;
    Tensor place_;                           // (N, k)
    Tensor rows_;                            // what came back (R, h)
    Travel travel_;                          // with ep > 1
    std::optional<RowsByExpert> by_expert_;  // likewise
};

}  // namespace ultrascale
