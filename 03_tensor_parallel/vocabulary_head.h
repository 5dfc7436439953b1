// The output head split over the vocabulary, and the loss without ever gathering the logits.
//
//     logits (N, V/tp) on each rank = X W_r^T: a column linear
//     of each row, on each rank:  m_r = max logit,  s_r = sum of exp(logit - m_r),  t_r = the target's logit, 0 where it is another rank's
//     all-gather of (m, s, t): 3 numbers a token and rank, whatever V
//     m = max m_r,  s = sum of s_r exp(m_r - m),  t = sum of t_r        loss = log s + m - t
//     gradient, in place and without any further communication:  exp(logit - m) / s - [target]
//
// No exponent is positive, so nothing overflows, whichever rank has the largest logit. An ignored
// target (-100) gives loss and gradient 0. The gradient of X is f's backward, as for every column
// linear.
#pragma once

#include "conjugates.h"
#include "core/ops.h"

namespace ultrascale {

class VocabularyHead : public Head {
public:
    VocabularyHead(Parameter* weight, int64_t chunk, const Conjugates& border)
        : Head(weight, chunk), border_(border) {}

    Tensor logits(const Tensor& x) const override {  // (N, V/tp): those of this rank's tokens
        return local_logits(border_.gather(x, false).wait());
    }

    void forward(const Tensor& x, Saved& saved, Context& context) override {
        Incoming in = border_.gather(x, false);
        Head::forward(in.wait(), saved, context);
        if (chunk_ == 0 && border_.gathers_again()) saved.keep("x", x);
    }

    Tensor backward_input(Saved& saved, Context& context) override {
        return sum_of_dx(saved, context, false).wait();
    }

    void backward_weight(Saved& saved, Context& context) override {
        Incoming x = whole_input(saved, false);
        add_weight_gradient(x, saved, context);
    }

    Tensor backward(Saved& saved, Context& context, WeightGradient when) override {
        if (when == WeightGradient::later || !border_.backward_overlaps())
            return Head::backward(saved, context, when);
        Incoming x = whole_input(saved, true);          // under dX's GEMM
        Outgoing dx = sum_of_dx(saved, context, true);  // under dW's GEMM
        add_weight_gradient(x, saved, context);
        return dx.wait();
    }

protected:
    void loss(Tensor logits, const Tensor& targets, Context& context) const override {
        const int64_t N = targets.numel(), first = weight_->slice[0].begin;
        const Tensor all =
            Tensor::empty({border_.group().size(), 3, N}, DType::fp32, Memory::activation);
        const Tensor mine = all.slice(border_.group().rank(), border_.group().rank() + 1);
        ops::cross_entropy_partial(mine, logits, targets, first);
        if (border_.group().size() > 1) border_.group().all_gather(all, mine);
        Tensor losses = Tensor::empty({N}, DType::fp32, Memory::activation);
        ops::cross_entropy_combine(losses, logits, all, targets, first,
                                   context.training ? context.token_weight : 0);
        ops::accumulate_sum(context.loss, losses, context.token_weight);
    }

private:
    Incoming whole_input(Saved& saved, bool beside) const {
        if (chunk_ > 0) return {};  // its gradient is there already
        return border_.gather_again(saved.take("x"), beside);
    }
    Outgoing sum_of_dx(Saved& saved, Context& context, bool beside) {
        return border_.sum(Head::backward_input(saved, context), beside);
    }
    void add_weight_gradient(Incoming& x, Saved& saved, Context& context) {
        if (chunk_ == 0) saved.keep("x", x.wait());
        Head::backward_weight(saved, context);
    }

    const Conjugates& border_;
};

}  // namespace ultrascale
