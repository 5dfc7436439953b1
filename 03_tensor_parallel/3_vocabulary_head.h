// The output head is split over the vocabulary, and the loss is computed without ever gathering the
// logits.
//
//     logits (N, V/tp) on each rank = X W_r^T: a column linear
//     of each row, on each rank:  m_r = max logit,  s_r = sum of exp(logit - m_r),
//                                 t_r = the target's logit, 0 where it is another rank's
//     all-gather of (m, s, t): 3 numbers per token and rank, however large V is
//     m = max m_r,  s = sum of s_r exp(m_r - m),  t = sum of t_r        loss = log s + m - t
//     gradient, in place and without any further communication:  exp(logit - m) / s - [target]
//
// No exponent is positive, so nothing overflows, whichever rank has the largest logit. An ignored
// target (-100) gives loss and gradient 0. The gradient of X is f's backward, as for every column
// linear; rung 2 gathers X again for dW, and 5_async_backward.h is rung 3.
#pragma once

#include "1_parallel_region.h"
#include "core/ops.h"
#include "kernels/ops_cross_entropy_split.h"

namespace ultrascale::tensor_parallel {

class VocabularyHead : public Head {
public:
    VocabularyHead(Parameter* weight, int64_t chunk, const ParallelRegion& region)
        : Head(weight, chunk), region_(region) {}

    Tensor logits(const Tensor& x) const override {  // (N, V/tp): of this rank's part of V
        return local_logits(region_.enter(x));
    }

    void forward(const Tensor& x, Saved& saved, Context& context) override {
        Head::forward(region_.enter(x), saved, context);
        if (chunk_ == 0 && region_.gathers_again()) saved.keep("x", x);
    }

    Tensor backward_input(Saved& saved, Context& context) override {
        return region_.leave(Head::backward_input(saved, context));
    }

    void backward_weight(Saved& saved, Context& context) override {
        add_weight_gradient(whole_input(saved, compute_stream()).wait(), saved, context);
    }

protected:
    void loss(Tensor logits, const Tensor& targets, Context& context) const override {
        const int64_t N = targets.numel(), first = weight_->slice[0].begin;
        const Tensor all =
            Tensor::empty({region_.group().size(), 3, N}, DType::fp32, Memory::activation);
        const Tensor mine = all.slice(region_.group().rank(), region_.group().rank() + 1);
        ops::cross_entropy_partial(mine, logits, targets, first);
        if (region_.group().size() > 1) region_.gather(all, mine);
        Tensor losses = Tensor::empty({N}, DType::fp32, Memory::activation);
        ops::cross_entropy_combine(losses, logits, all, targets, first,
                                   context.training ? context.token_weight : 0);
        ops::accumulate_sum(context.loss, losses, context.token_weight);
    }

    // Called in backward. If the loss is computed in chunks of tokens, the weight's gradient has
    // already been computed in forward.
    Pending whole_input(Saved& saved, Stream& stream) const {
        if (chunk_ > 0) return {};
        Tensor kept = saved.take("x");
        return region_.gathers_again() ? region_.begin_enter(kept, stream) : Pending{kept};
    }
    void add_weight_gradient(Tensor x, Saved& saved, Context& context) {
        if (chunk_ == 0) saved.keep("x", std::move(x));
        Head::backward_weight(saved, context);
    }

    const ParallelRegion& region_;
};

}  // namespace ultrascale::tensor_parallel
