// The interface of the general ways of dispatching rows (6_dispatch.h, 7_capacity.h,
// 8_rank_dispatch.h): they have the same phases, so one layer (experts_layer.h) works with all of
// them.
#pragma once

#include <functional>
#include <memory>

#include "1_plain_dispatch.h"

namespace ultrascale::expert_parallel {

// The rows of one micro-batch on their way through a layer: to their experts and back, and again
// with gradients. It holds what the way back needs, and Saved holds it until then.
//
//     permute         for each chunk:  start_dispatch  finish_dispatch  (experts)  start_combine
//     finish_combine
//     begin_backward  for each chunk:  the same, with gradients
//     end_backward_of_weights, end_backward
//
// A row's weight travels with it and is applied inside its expert (5_experts.h). Otherwise the rows
// that came back would have to be kept for the gradient of the weights: T k h elements a layer.
//
// Rows may travel in several chunks of tokens (--overlap chunks): while the experts compute on one,
// the next is on its way to them, and the one before on its way back.
class TokenDispatcher {
public:
    virtual ~TokenDispatcher() = default;
    virtual int64_t chunks() const { return 1; }
    // Puts the rows of x (N, h) in order, and finds out how many rows will arrive.
    virtual void permute(const Tensor& x, const Routed& routed) = 0;
    // Sends chunk c; waits until it has arrived; and sends it back, as the experts' weighted
    // outputs, or with gradients of rows and weights.
    virtual void start_dispatch(int64_t c) = 0;
    virtual ExpertRows finish_dispatch(int64_t c) = 0;
    virtual void start_combine(int64_t c, ExpertRows rows) = 0;
    // y (N, h) = residual + the sum of the rows that came back for each token. y may be the
    // residual.
    virtual void finish_combine(Tensor y, const Tensor& residual) = 0;
    // Sends dy (N, h), the gradient of each row that came back.
    virtual void begin_backward(const Tensor& dy) = 0;
    // dweights (N, k), then dx (N, h) += the gradients that came back.
    virtual void end_backward_of_weights(Tensor dweights) = 0;
    virtual void end_backward(Tensor dx) = 0;
    // What forward has dispatched, in a layer whose router chose these experts (N, k).
    virtual Dispatched dispatched(int64_t layer, bool backward_follows, Tensor experts) const = 0;
};

// exchange_rows (row_exchange.h) for ranks that all know all counts (from, to), so that copy
// engines can do it (comm.h).
inline Work exchange_rows(const Communicator& group, const Tensor& out, const Tensor& in,
                          const std::vector<int32_t>& counts, Stream& stream) {
    std::vector<int64_t> elements(counts.begin(), counts.end());
    for (int64_t& n : elements) n *= in.cols();
    return group.all_to_all(out, in, elements, stream);
}

}  // namespace ultrascale::expert_parallel
