// Balance: without intervention a router soon sends most tokens to a few experts. Two remedies:
//
// An auxiliary (load-balancing) loss, which grows when the experts that are chosen often have high
// probabilities, too. Let n_e be the number of times that T tokens choose expert e, and p_te the
// probability that the router gives it for token t. All four forms are one formula with different
// factors,
//
//     loss = factor * sum over e of n_e * sum over t of p_te
//
//                  factor         n and p are of               balanced   the total is
//     hf           E / (L T)^2    all L layers together        k          one loss
//     switch       E / T^2        each layer                   k          the sum over layers
//     megatron     E / (k T^2)    each layer                   1          the sum over layers
//     sequence     E / (k T^2)    each layer and sequence      1          the sum over layers,
//                                                                         the mean over sequences
//
// where p is a softmax, or sigmoids divided by their sum. Only p has a gradient; n is a constant.
// "Balanced" is the loss if all n_e are equal, or all sums of p. It is not a minimum: chosen
// experts may have low probabilities. hf is Hugging Face's load_balancing_loss_func, switch is
// equation 4 of Fedus et al. 2021 with every one of k choices counted, megatron is Megatron-LM's,
// sequence is equation 17 of DeepSeek-V3 (arXiv 2412.19437). A step's loss is the mean over its
// micro-batches on all ranks. With --aux-over global n is counted over the whole step instead,
// before the first backward (arXiv 2501.11873).
//
// A bias without a loss (DeepSeek-V3, section 2.1.2). It is added to the scores for the choice
// alone, and moved after each step by gamma: up for experts with less than the mean load, down for
// those with more; at the mean it stays.
//
// z-loss (Zoph et al. 2022): the mean of logsumexp(logits)^2 keeps logits small; summed over
// layers.
//
// A pipeline has several micro-batches in flight, and a rank has only some of the layers, so the
// counts of a layer's forward are kept by micro-batch and layer. If ranks share a micro-batch's
// tokens (shared_tokens.h), n is summed over them in forward; p is not, as its gradient belongs to
// single tokens.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "core/ops.h"
#include "kernels/ops_balance.h"
#include "model/parts.h"
#include "shared_tokens.h"

namespace ultrascale::expert_parallel {

// The factor above; only hf depends on `layers`.
inline double aux_factor(Aux kind, double experts, double k, double layers, double tokens) {
    if (kind == Aux::hf) return experts / (layers * tokens * layers * tokens);
    return experts / ((kind == Aux::switch_transformer ? 1 : k) * tokens * tokens);
}

// Moves a bias (DeepSeek-V3).
inline std::vector<float> moved_bias(std::vector<float> bias, const std::vector<float>& load,
                                     double gamma) {
    // exercise 06.4 begin: move up by gamma below the mean load, down above it
    double total = 0;  // whole numbers: the sum is exact, and so is the mean if a load equals it
    for (float n : load) total += double(n);
    const double mean = total / double(load.size());
    for (size_t e = 0; e < bias.size(); ++e)
        bias[e] += float(gamma * ((mean > double(load[e])) - (mean < double(load[e]))));
    // exercise 06.4 end
    return bias;
}

// The choices of a step's routers, over all ranks.
struct StepLoads {
    std::vector<std::vector<float>> by_layer;  // (layers with experts, E): choices of each expert
    double aux = 0, z = 0;  // without their coefficients; see LoadBalance::end_step

    // The largest load of an expert divided by the mean load, averaged over the layers.
    double imbalance() const {
        double sum = 0;
        for (const std::vector<float>& load : by_layer) {
            double total = 0;
            for (float n : load) total += double(n);
            sum += double(*std::ranges::max_element(load)) * double(load.size()) / total;
        }
        return sum / double(by_layer.size());
    }
};

// Counts the choices of the routers of a model, or of some of its layers, and gives the routers
// their losses' gradients.
class LoadBalance {
public:
    // `micro_batches`: a step's, on all ranks together.
    LoadBalance(const LlamaConfig& config, const ExpertOptions& options, int64_t micro_batches,
                const SharedTokens& shared = {})
        : config_(config),
          options_(options),
          shared_(shared),
          micro_batches_(double(micro_batches)),
          layers_(config.layers - config.experts.first_dense),
          biases_(size_t(layers_)) {}

    void add_bias(int64_t layer, Tensor bias) { biases_[size_t(index(layer))] = std::move(bias); }
    bool keeps_logits() const { return options_.z_coefficient > 0; }
    const SharedTokens& shared() const { return shared_; }
    // Whether a layer's forward sums its counts over the ranks that share a micro-batch's tokens.
    bool sums_counts() const { return shared_.count() > 1 && options_.has_loss() && !global(); }

    void begin_step() {
        by_micro_batch_.clear();
        step_ = zeros(layers_);
        z_ = Tensor::zeros({1}, DType::fp64, Memory::workspace);
    }
    // For AuxOver::global: first comes a forward of all micro-batches that only counts, then
    // counted() sums these counts, (layers, E), over `ranks`.
    void count_only(bool on) { count_only_ = on; }
    void counted(const Communicator& ranks) {
        if (ranks.size() > 1) ranks.all_reduce(step_);
        global_ = step_;
        step_ = zeros(layers_);
        if (options_.aux == Aux::hf) global_of_all_layers_ = sum_of_rows(global_);
    }

    // Called when a layer's forward has chosen `experts` (N, k) from `scores` and `logits` (N, E).
    void chosen(int64_t layer, const Tensor& experts, const Tensor& scores, const Tensor& logits,
                const Context& context) {
        if (context.recomputing || !(context.training || count_only_)) return;  // counted already
        const int64_t E = scores.cols(),
                      S = options_.aux == Aux::sequence ? context.batch.sequences() : 1;
        const int64_t l = index(layer);
        Statistics s{Tensor::empty({S, E}, DType::fp32, Memory::workspace),
                     Tensor::empty({S, E}, DType::fp32, Memory::workspace),
                     scores.rows() * shared_.count()};
        ops::balance_statistics(s.counts, s.sums, experts, scores, sigmoid());
        ops::add(step_.slice(l, l + 1), sum_of_rows(s.counts));
        if (count_only_) return;
        if (keeps_logits()) ops::z_loss(z_, logits);
        if (sums_counts()) shared_.ranks->all_reduce(s.counts);
        OfMicroBatch& here = by_micro_batch_[context.micro_batch];
        if (options_.aux == Aux::hf) {
            if (here.layers.empty()) here.all_layers = zeros(1);
            ops::add(here.all_layers, s.counts);
            s.counts = here.all_layers;  // complete when backward begins
        }
        here.layers[l] = std::move(s);
    }

    // The gradient of the step's auxiliary loss with respect to the scores (N, E) of a layer for a
    // micro-batch, times the loss's coefficient; empty without such a loss.
    Tensor score_gradient(int64_t layer, int micro_batch, const Tensor& scores) const {
        if (!options_.has_loss()) return {};
        const int64_t l = index(layer);
        const Statistics& s = by_micro_batch_.at(micro_batch).layers.at(l);
        const Tensor counts = counts_for(l, s);
        const Tensor factors = Tensor::empty(counts.shape(), DType::fp32, Memory::workspace);
        // The mean count is subtracted: it has no gradient, because probabilities add up to 1. So
        // equal loads give exactly 0; otherwise rounding errors would remain, and AdamW would make
        // full steps along them.
        ops::fill(factors, -float(mean_count(s)));
        ops::add(factors, counts);
        ops::scale(factors, float(options_.aux_coefficient * factor(s)));
        const Tensor gradient = Tensor::empty(scores.shape(), DType::fp32, Memory::activation);
        ops::balance_gradient(gradient, factors, scores, sigmoid());
        return gradient;
    }
    // The weight in the step's loss of the sum of squared log-sum-exps over this rank's rows of a
    // micro-batch.
    double z_factor(int64_t rows) const {
        return options_.z_coefficient / (double(rows * shared_.count()) * micro_batches_);
    }

    // Sums the loads of the step over `ranks`, which all call it, and moves the biases. `ranks`
    // must hold all layers and all tokens once, so that loads are complete everywhere. Losses that
    // are sums over the layers in the table above are returned as means, so that they can be
    // compared with its column "balanced".
    StepLoads end_step(const Communicator& ranks) {
        const int64_t E = config_.experts.count;
        double aux = 0, tokens = 1;  // of a micro-batch
        for (const auto& [micro_batch, statistics] : by_micro_batch_)
            for (const auto& [l, s] : statistics.layers) {
                const std::vector<float> n = counts_for(l, s).to_host<float>(),
                                         p = s.sums.to_host<float>();
                for (size_t i = 0; i < p.size(); ++i)
                    aux += factor(s) * double(n[i % n.size()]) * double(p[i]);
                tokens = double(s.tokens);
            }
        by_micro_batch_.clear();
        std::vector<double> all;
        for (float n : step_.to_host<float>()) all.push_back(double(n));
        all.push_back(aux);
        all.push_back(z_.to_host<double>()[0] / (tokens * micro_batches_));
        const Tensor sum = Tensor::from_host<double>(all, {int64_t(all.size())}, Memory::workspace);
        if (ranks.size() > 1) ranks.all_reduce(sum);
        all = sum.to_host<double>();
        StepLoads loads;
        for (int64_t l = 0; l < layers_; ++l)
            loads.by_layer.emplace_back(all.begin() + l * E, all.begin() + (l + 1) * E);
        loads.aux = all[size_t(layers_ * E)] / (options_.aux == Aux::hf ? 1 : double(layers_));
        loads.z = all.back() / double(layers_);
        for (size_t l = 0; l < biases_.size(); ++l)
            if (biases_[l])
                biases_[l].copy_from_host(
                    moved_bias(biases_[l].to_host<float>(), loads.by_layer[l], options_.gamma)
                        .data());
        return loads;
    }
    // The number of elements in the all-reduces of counted() and end_step().
    int64_t counted_elements() const { return layers_ * config_.experts.count; }
    int64_t step_elements() const { return counted_elements() + 2; }

private:
    struct Statistics {
        Tensor counts, sums;  // (S, E): n of all ranks that share the tokens; p of this rank
        int64_t tokens = 0;   // of the micro-batch
    };
    struct OfMicroBatch {
        std::map<int64_t, Statistics> layers;  // from the first one with experts
        Tensor all_layers;                     // with Aux::hf: their counts (1, E)
    };
    int64_t index(int64_t layer) const { return layer - config_.experts.first_dense; }
    bool sigmoid() const { return config_.experts.router.score == ops::RouterScore::sigmoid; }
    bool global() const { return options_.aux_over == AuxOver::global; }
    Tensor counts_for(int64_t l, const Statistics& s) const {
        if (!global() || !global_) return s.counts;
        return options_.aux == Aux::hf ? global_of_all_layers_ : global_.slice(l, l + 1);
    }
    // The mean over the experts of the counts that multiply a layer's probabilities.
    double mean_count(const Statistics& s) const {
        return double(s.tokens / s.sums.rows()) * double(config_.experts.router.top_k) /
               double(config_.experts.count) * (global() ? micro_batches_ : 1) *
               (options_.aux == Aux::hf ? double(layers_) : 1);
    }
    // The weight of n_e p_te in the step's loss, without the coefficient.
    double factor(const Statistics& s) const {
        const int64_t S = s.sums.rows();
        const double tokens = double(s.tokens / S) * (global() ? micro_batches_ : 1),
                     of = aux_factor(options_.aux, double(config_.experts.count),
                                     double(config_.experts.router.top_k), double(layers_), tokens);
        return global() ? of : of / double(S) / micro_batches_;
    }
    Tensor zeros(int64_t rows) const {
        return Tensor::zeros({rows, config_.experts.count}, DType::fp32, Memory::workspace);
    }
    Tensor sum_of_rows(const Tensor& x) const {
        const Tensor sum = zeros(1);
        for (int64_t i = 0; i < x.rows(); ++i) ops::add(sum, x.slice(i, i + 1));
        return sum;
    }

    LlamaConfig config_;
    ExpertOptions options_;
    SharedTokens shared_;
    double micro_batches_;
    int64_t layers_;
    bool count_only_ = false;
    std::map<int, OfMicroBatch> by_micro_batch_;  // the step's end adds up their losses
    std::vector<Tensor> biases_;                  // empty: no bias, or on another rank
    Tensor step_, z_;  // the step's counts (layers, E); sum of the z-loss
    Tensor global_, global_of_all_layers_;
};

}  // namespace ultrascale::expert_parallel
