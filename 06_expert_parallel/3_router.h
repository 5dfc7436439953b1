// The router: a linear without bias that scores the experts for each token, and the choice of the k
// best. (2_route.h does the same token by token.)
//
//     x (N, h) --W (E, h)--> logits (N, E) --> scores --> experts (N, k), weights (N, k)
//                                                |
//                                         auxiliary losses (4_balance.h)
//
// Its arithmetic is in fp32 whatever the model's dtype, because rounding would change choices. Only
// the weights carry a gradient back to the scores; the choice of experts has no gradient.
#pragma once

#include "2_route.h"
#include "4_balance.h"
#include "kernels/ops_experts.h"
#include "model/activation.h"
#include "model/llama.h"

namespace ultrascale::expert_parallel {

struct Routed {
    Tensor experts, weights;  // (N, k) int32, fp32
};

class Router {
public:
    // Registers "PLACE.gate.weight" and, if training moves a bias, its buffer.
    Router(ParameterList& list, const ModulePath& block, const LlamaConfig& config,
           const ExpertOptions& options, LoadBalance& balance)
        : settings_(config.experts.router),
          layer_(block.layer),
          options_(options),
          balance_(balance),
          weight_(list.add({.name = block.part("gate").weight(),
                            .shape = {config.experts.count, config.hidden},
                            .init_std = float(config.init_std),
                            .replica_groups = balance.shared().replica_groups})) {
        if (config.experts.selection_bias) {
            bias_ =
                list.add_buffer(block.name + ".gate.e_score_correction_bias", config.experts.count);
            balance.add_bias(layer_, bias_);
        }
    }
    virtual ~Router() = default;

    // x (N, h)
    Routed forward(const Tensor& x, Saved& saved, const Context& context) {
        const TraceName name(TraceName::part, "router");
        const int64_t N = x.rows(), E = weight_->shape[0], k = settings_.top_k;
        Tensor logits = activation({N, E}, DType::fp32);
        ops::router_logits(logits, x, weight_->value);
        const Tensor scores = activation({N, E}, DType::fp32);
        Routed routed{activation({N, k}, DType::int32), activation({N, k}, DType::fp32)};
        choose(routed, scores, logits);
        if (options_.forced()) force(routed);
        balance_.chosen(layer_, routed.experts, scores, logits, context);
        saved.keep("x", x);
        saved.keep("scores", scores);
        saved.keep("experts", routed.experts);
        if (balance_.keeps_logits()) saved.keep("logits", std::move(logits));
        return routed;
    }

    // The gradient of x (N, h), from that of the weights (N, k) and from the auxiliary losses.
    Tensor backward_input(const Tensor& dweights, Saved& saved, const Context& context) {
        const TraceName name(TraceName::part, "router"), pass(TraceName::pass, "dX");
        const Tensor scores = saved.take("scores"), experts = saved.take("experts");
        const Tensor dlogits = activation(scores.shape(), DType::fp32);
        {
            const Tensor dscores = auxiliary_gradient(scores, context);
            const bool constant = options_.forced() || has_constant_weights(settings_);
            const Tensor used_dweights = constant ? zeros_like(dweights) : dweights;
            ops::router_backward(dlogits, used_dweights, scores, experts, settings_, dscores);
        }
        if (balance_.keeps_logits())
            ops::z_loss_backward(dlogits, saved.take("logits"),
                                 float(balance_.z_factor(scores.rows())));
        const DType dtype = weight_->value.dtype();
        Tensor dy = dlogits;
        if (dtype != DType::fp32) {  // a product's factors share a dtype
            dy = activation(dlogits.shape(), dtype);
            ops::copy(dy, dlogits);
        }
        const Tensor dx = activation({dy.rows(), weight_->shape[1]}, dtype);
        ops::matmul(dx, dy, ops::Transpose::no, weight_->value, ops::Transpose::no);
        saved.keep("dy", dy);
        return dx;
    }
    void backward_weight(Saved& saved, Context& context) {
        const TraceName name(TraceName::part, "router"), pass(TraceName::pass, "dW");
        ops::matmul(weight_->grad, saved.take("dy"), ops::Transpose::yes, saved.take("x"),
                    ops::Transpose::no, weight_->begin_contribution());
        context.contributed(*weight_);
    }

protected:
    // Computes the scores of logits (N, E), each token's k experts, and their weights.
    virtual void choose(const Routed& routed, const Tensor& scores, const Tensor& logits) const {
        ops::router_forward(routed.experts, routed.weights, scores, logits, bias_, settings_);
    }
    // The auxiliary losses' gradient with respect to scores (N, E); empty if there are none.
    virtual Tensor auxiliary_gradient(const Tensor& scores, const Context& context) const {
        return balance_.score_gradient(layer_, context.micro_batch, scores);
    }

    ops::RouterSettings settings_;
    Tensor bias_;  // (E) fp32; empty: none

private:
    static Tensor zeros_like(const Tensor& t) {
        return Tensor::zeros(t.shape(), t.dtype(), Memory::workspace);
    }
    // Sets all weights to 1/k, and sends tokens where forced_expert() says.
    void force(const Routed& routed) const {
        const int64_t N = routed.experts.rows(), k = settings_.top_k;
        if (!forced_ || forced_.rows() != N) {
            std::vector<int32_t> experts;
            for (const int64_t n : balance_.shared().tokens_of(N))
                for (int64_t j = 0; j < k; ++j)
                    experts.push_back(forced_expert(n, j, weight_->shape[0], k, options_.skew));
            forced_ = Tensor::from_host<int32_t>(experts, {N, k}, Memory::workspace);
        }
        ops::gather_rows(routed.experts, forced_, rows_in_order(N));
        ops::fill(routed.weights, 1 / float(k));
    }
    const Tensor& rows_in_order(int64_t N) const {
        if (!in_order_ || in_order_.numel() != N) {
            std::vector<int32_t> index(static_cast<size_t>(N));
            std::iota(index.begin(), index.end(), 0);
            in_order_ = Tensor::from_host<int32_t>(index, {N}, Memory::workspace);
        }
        return in_order_;
    }

    int64_t layer_;
    ExpertOptions options_;
    LoadBalance& balance_;
    Parameter* weight_;
    mutable Tensor forced_, in_order_;
};

}  // namespace ultrascale::expert_parallel
