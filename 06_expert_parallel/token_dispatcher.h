// What every way of dispatching rows is (6_dispatch.h, 7_capacity.h, 8_rank_dispatch.h): a dispatcher
// with the same phases, and what all of them need for it.
#pragma once

#include <functional>
#include <memory>

#include "3_router.h"
#include "comm/comm.h"
#include "core/error.h"
#include "core/trace.h"
#include "dispatch_statistics.h"

namespace ultrascale::expert_parallel {

// What this rank's experts compute on.
struct ExpertRows {
    Tensor rows, counts;  // (R, h) in the experts' order; (G) int32 rows of each of its experts
    Tensor weights;       // (R, 1) fp32, the routers'; in backward their gradients
};

// The rows of one micro-batch on their way through a layer: to their experts and back, and the same
// way again with gradients. It holds what the way back needs, and Saved holds it until then.
//
//     permute         for each chunk:  start_dispatch  finish_dispatch  (experts)  start_combine
//     finish_combine
//     begin_backward  for each chunk:  the same, with gradients
//     end_backward_of_weights, end_backward
//
// A row's weight travels with it, to be applied inside its expert (experts_layer.h). Otherwise what came
// back would have to be kept for the gradient of the weights: T k h elements a layer.
//
// Rows may travel in several chunks of tokens (--overlap chunks): while the experts compute on one,
// the next is on its way to them, and the one before on its way back.
class TokenDispatcher {
public:
    virtual ~TokenDispatcher() = default;
    virtual int64_t chunks() const { return 1; }
    // Puts the rows of x (N, h) in order, and finds out how many will come.
    virtual void permute(const Tensor& x, const Routed& routed) = 0;
    // (N, k): where the row of each choice is, -1 if it was dropped. Empty: none can be.
    virtual Tensor positions() const { return {}; }
    // Chunk c sets out; arrives; and goes back, as the experts' weighted outputs, or with gradients
    // of rows and weights.
    virtual void start_dispatch(int64_t c) = 0;
    virtual ExpertRows finish_dispatch(int64_t c) = 0;
    virtual void start_combine(int64_t c, ExpertRows rows) = 0;
    // y (N, h) = residual + the sum of what came back for each token. y may be the residual.
    virtual void finish_combine(Tensor y, const Tensor& residual) = 0;
    // dy (N, h), the gradient of each row that came back, travels
    virtual void begin_backward(const Tensor& dy) = 0;
    // dweights (N, k), then dx (N, h) += the gradients that came back
    virtual void end_backward_of_weights(Tensor dweights) = 0;
    virtual void end_backward(Tensor dx) = 0;
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

// The same if all ranks know all counts (from, to), so that copy engines can do it (comm.h).
inline Work exchange_rows(const Communicator& group, const Tensor& out, const Tensor& in,
                          const std::vector<int32_t>& counts, Stream& stream) {
    std::vector<int64_t> elements(counts.begin(), counts.end());
    for (int64_t& n : elements) n *= in.cols();
    return group.all_to_all(out, in, elements, stream);
}

// The host waits until the device has computed `counts`; --trace shows it as a span. What was
// queued after the event `counted` may still run.
inline std::vector<int32_t> read_counts(const Tensor& counts,
                                        const Event& counted = compute_stream().record()) {
    const OpSpan span("host waits for counts", 0, 0, "host");
    return counts.to_host<int32_t>(counted);
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

inline Tensor column(const Tensor& t) { return t.view({t.numel(), 1}); }

inline std::vector<int64_t> rows_by_rank(const std::vector<int32_t>& counts, int64_t ranks) {
    std::vector<int64_t> rows;
    const auto each = std::ptrdiff_t(counts.size()) / ranks;
    for (auto at = counts.begin(); at != counts.end(); at += each)
        rows.push_back(std::reduce(at, at + each, int64_t(0)));
    return rows;
}

}  // namespace ultrascale::expert_parallel
