// The layer for every dispatch but the plain one. It adds shared experts, and a dispatcher
// (token_dispatcher.h) whose rows may travel while something else is computed: the experts on
// another chunk of tokens, or another micro-batch (10_overlap_batches.h), to which it yields where
// it would wait for rows. On two H200s chunks expose 13.6 ms of a micro-batch's all-to-alls,
// another micro-batch 1.2 (MEASURED.md).
//
//     x --+--> router --> k experts and weights for each token
//         |                    |
//         +--> dispatch --> [ down( silu(gate) * up ) ] of each expert --> combine --> + --> y
//         |                                                                            ^
//         +--> shared experts: one SwiGLU that every token goes through ---------------+
//                                                                   residual ----------'
//
// (Shared experts: DeepSeekMoE, Dai et al. 2024, arXiv 2401.06066.)
#pragma once

#include "5_experts.h"
#include "6_dispatch.h"
#include "model/dropout.h"
#include "train/interleave.h"

namespace ultrascale::expert_parallel {

// y = residual + dropout(inner(x)). A token's mask does not depend on the order of rows, so dropout
// comes after the combine.
class DropoutFeedForward : public FeedForward {
public:
    DropoutFeedForward(std::unique_ptr<FeedForward> inner, Dropout dropout, std::string path)
        : inner_(std::move(inner)), dropout_(std::move(dropout)), path_(std::move(path)) {}
    Tensor forward(const Tensor& x, const Tensor& residual, Saved& saved,
                   Context& context) override {
        if (!context.drops()) return inner_->forward(x, residual, saved, context);
        Tensor y = inner_->forward(x, {}, saved, context);
        dropout_.forward(y, y, path_, saved, context, residual);
        return y;
    }
    Tensor backward(const Tensor& dy, Saved& saved, Context& context,
                    WeightGradient when) override {
        const Tensor dropped = dropout_.backward(dy, path_, saved, context);
        return inner_->backward(dropped, saved, context, when);
    }
    void backward_weight(Saved& saved, Context& context) override {
        inner_->backward_weight(saved, context);
    }

private:
    std::unique_ptr<FeedForward> inner_;
    Dropout dropout_;
    std::string path_;
};

// Sets the feed-forward of the layers with experts; `make` builds it from parts without dropout.
inline void set_experts(ModuleFactories& factories, const LlamaConfig& config,
                        const ModelOptions& model,
                        std::function<std::unique_ptr<FeedForward>(
                            ParameterList&, const ModuleFactories&, const ModulePath&)>
                            make,
                        const SharedTokens& shared = {}) {
    ModelOptions plain = model;
    plain.dropout = 0;
    factories.feed_forward = [=, dense = factories.feed_forward,
                              bare = default_factories(config, plain)](
                                 ParameterList& list, const ModuleFactories& all,
                                 const ModulePath& layer) -> std::unique_ptr<FeedForward> {
        if (!config.has_experts(layer.layer)) return dense(list, all, layer);
        std::unique_ptr<FeedForward> experts = make(list, bare, layer);
        if (model.dropout == 0) return experts;
        return std::make_unique<DropoutFeedForward>(
            std::move(experts),
            Dropout{float(model.dropout), model.seed, shared.tokens, model.keep_masks},
            layer.name + ".experts");
    };
}

class ExpertsLayer : public FeedForward {
public:
    // `start` makes the dispatcher of a micro-batch's rows, which has this many `chunks` in
    // training. Keeps a reference to `observer`, which may be empty.
    ExpertsLayer(std::unique_ptr<Router> router, GroupedSwiGLU experts,
                 std::unique_ptr<SwiGLU> shared,
                 std::function<std::unique_ptr<TokenDispatcher>()> start, int64_t chunks,
                 const SeeDispatch& observer, int64_t layer)
        : router_(std::move(router)),
          experts_(std::move(experts)),
          shared_(std::move(shared)),
          start_(std::move(start)),
          chunks_(chunks),
          observer_(observer),
          layer_(layer) {}

    Tensor forward(const Tensor& x, const Tensor& residual, Saved& saved,
                   Context& context) override {
        const int64_t N = x.rows();
        const Tensor rows = x.view({N, x.cols()}),
                     stream = residual ? residual.view(rows.shape()) : Tensor();
        const Routed routed = router_->forward(rows, saved["router"], context);
        const std::shared_ptr<TokenDispatcher> dispatcher = start_();
        dispatcher->permute(rows, routed);
        dispatcher->start_dispatch(0);
        Tensor y;
        if (shared_) y = shared_->forward(rows, stream, saved["shared"], context);
        yield_to_other();  // under the dispatch
        for (int64_t c = 0; c < dispatcher->chunks(); ++c) {
            ExpertRows in = dispatcher->finish_dispatch(c);
            if (c + 1 < dispatcher->chunks()) dispatcher->start_dispatch(c + 1);
            dispatcher->start_combine(
                c, {.rows = experts_.forward(std::move(in), chunk_saved(saved, c))});
        }
        const Tensor before = y ? y : stream;
        if (!y) y = activation_like(rows);
        yield_to_other();  // under the combine
        dispatcher->finish_combine(y, before);
        if (observer_)
            observer_(dispatcher->dispatched(layer_, saved.enabled(), routed.experts), context);
        saved.keep_object(dispatcher);
        return y.view(x.shape());
    }

    Tensor backward(const Tensor& dy, Saved& saved, Context& context,
                    WeightGradient when) override {
        const auto dispatcher = saved.take_object<std::shared_ptr<TokenDispatcher>>();
        const Tensor rows = dy.view({dy.rows(), dy.cols()});
        Tensor dx;
        dispatcher->begin_backward(rows);
        dispatcher->start_dispatch(0);
        if (shared_) dx = shared_->backward(rows, saved["shared"], context, when);
        yield_to_other();  // under the dispatch of gradients
        for (int64_t c = 0; c < dispatcher->chunks(); ++c) {
            Tensor dout = dispatcher->finish_dispatch(c).rows;
            Saved& kept = chunk_saved(saved, c);
            if (c + 1 < dispatcher->chunks()) dispatcher->start_dispatch(c + 1);
            dispatcher->start_combine(c, experts_.backward(std::move(dout), kept, context, when));
            // The rows travel meanwhile, if anything overlaps.
            if (when == WeightGradient::now) experts_.backward_weight_of_gate_up(kept, context);
        }
        yield_to_other();  // under their combine
        const Tensor dweights = activation(saved["router"].get("experts").shape(), DType::fp32);
        dispatcher->end_backward_of_weights(dweights);
        Tensor router_dx = router_->backward_input(dweights, saved["router"], context);
        if (when == WeightGradient::now) router_->backward_weight(saved["router"], context);
        if (dx)
            ops::add(dx, router_dx);
        else
            dx = router_dx;
        router_dx = {};
        dispatcher->end_backward(dx);
        return dx.view(dy.shape());
    }

    void backward_weight(Saved& saved, Context& context) override {
        if (shared_) shared_->backward_weight(saved["shared"], context);
        for (int64_t c = 0; c < chunks_; ++c)
            experts_.backward_weight(chunk_saved(saved, c), context);
        router_->backward_weight(saved["router"], context);
    }

private:
    static Saved& chunk_saved(Saved& saved, int64_t c) {
        return saved["experts"][std::to_string(c)];
    }

    std::unique_ptr<Router> router_;
    GroupedSwiGLU experts_;
    std::unique_ptr<SwiGLU> shared_;  // may be empty
    std::function<std::unique_ptr<TokenDispatcher>()> start_;
    int64_t chunks_;
    const SeeDispatch& observer_;
    int64_t layer_;
};

}  // namespace ultrascale::expert_parallel
