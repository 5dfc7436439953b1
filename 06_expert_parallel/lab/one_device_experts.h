// The experts' layer in the plain way, for --verify: a loop over tokens that chooses (2_route.h), a
// loop over experts that computes, and sums on the host. It shares no code with the router's, the
// dispatch's and the balance's operations.
#pragma once

#include "../2_route.h"
#include "../experts_layer.h"
#include "choices.h"
#include "model/activation.h"
#include "model/llama.h"
#include "one_device_balance.h"
#include "one_device_fp8.h"

namespace ultrascale::expert_parallel {

class OneDeviceExperts : public FeedForward {
public:
    OneDeviceExperts(ParameterList& list, const ModuleFactories& factories, const ModulePath& layer,
                     std::shared_ptr<OneDeviceBalance> balance)
        : layer_(layer.layer), balance_(std::move(balance)) {
        const LlamaConfig& config = balance_->config;
        const ExpertsConfig& e = config.experts;
        const ExpertNames names = expert_names(config);
        const ModulePath block = layer.part(names.block);
        gate_ = list.add({.name = block.part("gate").weight(),
                          .shape = {e.count, config.hidden},
                          .init_std = float(config.init_std)});
        if (e.selection_bias)
            bias_ = list.add_buffer(block.name + ".gate.e_score_correction_bias", e.count);
        const auto swiglu = [&](const ModulePath& path, const char* gate, const char* up,
                                const char* down, int64_t F) {
            return std::make_unique<SwiGLU>(
                factories.linear(list, factories, path, LinearRole::column,
                                 {{{gate, F}, {up, F}}, config.hidden}),
                factories.linear(list, factories, path, LinearRole::row,
                                 {{{down, config.hidden}}, F}));
        };
        for (int64_t i = 0; i < e.count; ++i)
            experts_.push_back(swiglu(block.part(fmt::format("experts.{}", i)), names.gate,
                                      names.up, names.down, e.ffn));
        for (auto p = list.end() - 3 * e.count; p != list.end(); ++p)
            expert_parameters_.push_back(p->get());
        if (e.shared > 0)
            shared_ = swiglu(layer.part("mlp.shared_experts"), "gate_proj", "up_proj", "down_proj",
                             e.shared * e.ffn);
    }

    Tensor forward(const Tensor& x, const Tensor& residual, Saved& saved,
                   Context& context) override {
        const int64_t N = x.rows(), h = x.cols(), E = int64_t(experts_.size());
        if (context.training && context.micro_batch == 0) begin_step();
        const Tensor logits = activation({N, E}, DType::fp32);
        ops::matmul(logits, x.view({N, h}), ops::Transpose::no, gate_->value, ops::Transpose::yes);
        Tokens t{x.view({N, h}), logits.to_host<float>()};
        choose(t, context);
        const Tensor y =
            shared_ ? shared_->forward(x, residual, saved["shared"], context) : residual;
        std::vector<float> sum = y ? y.to_host_float() : std::vector<float>(size_t(N * h), 0.0f);
        t.rows.resize(size_t(E)), t.outs.resize(size_t(E));
        const Tensor there =  // the experts' input
            balance_->options.fp8_rows()
                ? from_floats(rounded_to_fp8(t.x.to_host_float()), t.x.shape(), x.dtype())
                : t.x;
        for (size_t n = 0; n < t.routes.size(); ++n)
            for (size_t j = 0; j < t.routes[n].experts.size(); ++j)
                if (!t.dropped[n * t.routes[n].experts.size() + j])
                    t.rows[size_t(t.routes[n].experts[j])].push_back(int32_t(n));
        for (size_t e = 0; e < experts_.size(); ++e)
            if (!t.rows[e].empty())
                t.outs[e] =
                    experts_[e]
                        ->forward(rows_of(there, t.rows[e]), {}, saved[std::to_string(e)], context)
                        .to_host_float();
        for (size_t e = 0; e < experts_.size(); ++e)
            for (size_t i = 0; i < t.rows[e].size(); ++i)
                for (int64_t c = 0; c < h; ++c)
                    sum[size_t(t.rows[e][i] * h + c)] +=
                        float(t.weight(e, t.rows[e][i])) * t.outs[e][i * size_t(h) + size_t(c)];
        saved.keep_object(std::move(t));
        return from_floats(sum, x.shape(), x.dtype());
    }

    Tensor backward(const Tensor& dy, Saved& saved, Context& context,
                    WeightGradient when) override {
        const auto t = saved.take_object<Tokens>();
        const int64_t N = dy.rows(), h = dy.cols();
        std::vector<float> d = dy.to_host_float();
        if (balance_->options.fp8_gradients())
            d = from_floats(rounded_to_fp8(std::move(d)), dy.shape(), dy.dtype()).to_host_float();
        std::vector<float> dx(d.size(), 0.0f);
        if (shared_) dx = shared_->backward(dy, saved["shared"], context, when).to_host_float();
        std::vector<std::vector<double>> dweights;
        for (const Route& route : t.routes) dweights.emplace_back(route.experts.size(), 0.0);
        for (size_t e = 0; e < experts_.size(); ++e) {
            std::vector<float> dout;
            for (size_t i = 0; i < t.rows[e].size(); ++i) {
                const size_t n = size_t(t.rows[e][i]);
                const float w = float(t.weight(e, int64_t(n)));
                double along = 0;
                for (size_t c = 0; c < size_t(h); ++c) {
                    const float of = d[n * size_t(h) + c];
                    dout.push_back(w * of);
                    along += double(of) * double(t.outs[e][i * size_t(h) + c]);
                }
                dweights[n][t.path(e, n)] = along;
            }
            if (dout.empty()) {
                for (size_t i = 0; i < 3; ++i) context.contributed(*expert_parameters_[3 * e + i]);
                continue;
            }
            const Tensor in = from_floats(dout, {int64_t(t.rows[e].size()), h}, dy.dtype());
            const std::vector<float> din =
                experts_[e]->backward(in, saved[std::to_string(e)], context, when).to_host_float();
            for (size_t i = 0; i < din.size(); ++i)
                dx[size_t(t.rows[e][i / size_t(h)]) * size_t(h) + i % size_t(h)] += din[i];
        }
        const Tensor dlogits = router_gradient(t, dweights, dy.dtype()),
                     through = activation({N, h}, dy.dtype());
        ops::matmul(through, dlogits, ops::Transpose::no, gate_->value, ops::Transpose::no);
        ops::matmul(gate_->grad, dlogits, ops::Transpose::yes, t.x, ops::Transpose::no,
                    gate_->begin_contribution());
        context.contributed(*gate_);
        ops::add(through, from_floats(dx, {N, h}, dy.dtype()));
        return through.view(dy.shape());
    }
    void backward_weight(Saved&, Context&) override {
        check(false, "the plain training computes both gradients at once");
    }

private:
    // A micro-batch's data, kept until its backward.
    struct Tokens {
        Tensor x;                   // (N, h)
        std::vector<float> logits;  // (N, E)
        std::vector<Route> routes;
        std::vector<char> dropped, dropped_by_run;  // (N, k)
        std::vector<std::vector<int32_t>> rows;     // the tokens of each expert
        std::vector<std::vector<float>> outs;       // the experts' outputs
        double weight(size_t e, int64_t n) const {
            return routes[size_t(n)].weights[path(e, size_t(n))];
        }
        size_t path(size_t e, size_t n) const {
            const std::vector<int>& chosen = routes[n].experts;
            return size_t(std::ranges::find(chosen, int(e)) - chosen.begin());
        }
    };
    void begin_step() {
        std::vector<float>& load = balance_->loads[layer_];
        if (bias_ && !load.empty()) {
            std::vector<float> bias = bias_.to_host<float>();
            const double mean =
                std::accumulate(load.begin(), load.end(), 0.0) / double(load.size());
            for (size_t e = 0; e < bias.size(); ++e)
                if (double(load[e]) != mean)
                    bias[e] += float(balance_->options.gamma * (double(load[e]) < mean ? 1 : -1));
            bias_.copy_from_host(bias.data());
        }
        load.assign(experts_.size(), 0.0f);
        ++step_;
    }
    void choose(Tokens& t, const Context& context) {
        const int64_t N = t.x.rows();
        const ExpertsConfig& e = balance_->config.experts;
        const ExpertOptions& o = balance_->options;
        const std::vector<float> bias = bias_ ? bias_.to_host<float>() : std::vector<float>();
        for (int64_t n = 0; n < N; ++n) {
            const std::span<const float> row(&t.logits[size_t(n * e.count)], size_t(e.count));
            t.routes.push_back(route_token(row, bias, e.router));
            for (int64_t j = 0; o.forced() && j < e.router.top_k; ++j) {
                t.routes.back().experts[size_t(j)] =
                    forced_expert(n % balance_->tokens, j, e.count, e.router.top_k, o.skew);
                t.routes.back().weights[size_t(j)] = 1 / double(e.router.top_k);
            }
        }
        const size_t k = size_t(e.router.top_k);
        t.dropped.assign(size_t(N) * k, false), t.dropped_by_run = t.dropped;
        for (int64_t n = 0; context.training && n < N; ++n) follow(t, n, bias, context);
        const int64_t together = balance_->chunk_tokens;
        for (int64_t first = 0; o.capacity_factor > 0 && first < N; first += together) {
            const int64_t tokens = std::min(together, N - first);
            drop(t, {first, first + tokens}, capacity_of(o, e, tokens));
        }
        if (!context.training) return;
        count(t, context);
        for (int64_t n = 0; n < N; ++n)
            balance_->choices.made(key(n, context), t.routes[size_t(n)], &t.dropped[size_t(n) * k]);
    }
    OneDeviceChoices::Key key(int64_t n, const Context& context) const {
        const Batch& batch = context.batch;
        return {step_ - 1, layer_, batch.first_sample + n / batch.length(), n % batch.length()};
    }
    void follow(Tokens& t, int64_t n, const std::vector<float>& bias, const Context& context) {
        Route& route = t.routes[size_t(n)];
        const std::vector<int> dropped =
            balance_->choices.follow(key(n, context), route, bias, balance_->config.experts.router);
        for (size_t j = 0; j < route.experts.size(); ++j)
            t.dropped_by_run[size_t(n) * route.experts.size() + j] =
                std::ranges::find(dropped, route.experts[j]) != dropped.end();
    }
    void count(const Tokens& t, const Context& context) {
        const size_t S = balance_->options.aux == Aux::sequence ? size_t(context.batch.sequences())
                                                                : 1,
                     each = t.routes.size() / S;
        auto& counts = balance_->counts[layer_];
        counts.assign(S, OneDeviceBalance::Counts(experts_.size(), 0.0));
        for (size_t n = 0; n < t.routes.size(); ++n)
            for (int e : t.routes[n].experts)
                ++counts[n / each][size_t(e)], ++balance_->loads[layer_][size_t(e)];
    }
    // Lets an expert over its capacity drop the last tokens, or those with the smallest weights.
    void drop(Tokens& t, Range tokens, int64_t capacity) {
        const bool by_score = balance_->options.drop == Drop::by_score;
        for (size_t e = 0; e < experts_.size(); ++e) {
            std::vector<size_t> choices;  // n k + j
            const size_t k = t.routes[0].experts.size();
            for (size_t n = size_t(tokens.begin); n < size_t(tokens.end); ++n)
                if (const size_t j = t.path(e, n); j < k) choices.push_back(n * k + j);
            const auto weight = [&](size_t c) { return float(t.routes[c / k].weights[c % k]); };
            if (by_score) std::ranges::stable_sort(choices, std::greater<>(), weight);
            std::vector<char> mine, theirs;
            std::vector<double> weights;
            for (size_t i = 0; i < choices.size(); ++i) {
                mine.push_back(i >= size_t(capacity));
                theirs.push_back(t.dropped_by_run[choices[i]]);
                if (by_score) weights.push_back(double(weight(choices[i])));
            }
            mine = balance_->choices.follow_drops(step_ - 1, mine, theirs, weights);
            for (size_t i = 0; i < choices.size(); ++i) t.dropped[choices[i]] = mine[i];
        }
    }

    Tensor router_gradient(const Tokens& t, const std::vector<std::vector<double>>& dweights,
                           DType dtype) const {
        const ExpertOptions& o = balance_->options;
        const ops::RouterSettings& settings = balance_->config.experts.router;
        const size_t E = experts_.size(), S = balance_->counts.at(layer_).size(),
                     each = t.routes.size() / S;
        std::vector<float> all;
        for (size_t n = 0; n < t.routes.size(); ++n) {
            const Route& route = t.routes[n];
            std::vector<double> dscores(E, 0.0);
            if (!o.forced()) dscores = score_gradient(route, dweights[n], settings);
            if (o.has_loss()) add_aux(dscores, route.scores, n / each, double(each), double(S));
            std::vector<double> dlogits = logit_gradient(route.scores, dscores, settings.score);
            if (o.z_coefficient > 0) add_z(t, dlogits, n);
            all.insert(all.end(), dlogits.begin(), dlogits.end());
        }
        return from_floats(all, {int64_t(t.routes.size()), int64_t(E)}, dtype);
    }
    void add_aux(std::vector<double>& dscores, const std::vector<double>& scores, size_t segment,
                 double tokens, double segments) const {
        const double factor =
            balance_->options.aux_coefficient * balance_->factor(tokens) / segments;
        const OneDeviceBalance::Counts counts = balance_->counts_for(layer_, segment);
        if (balance_->config.experts.router.score == ops::RouterScore::softmax) {
            for (size_t e = 0; e < scores.size(); ++e) dscores[e] += factor * counts[e];
            return;
        }
        double sum = 1e-20, along = 0;
        for (double s : scores) sum += s;
        for (size_t e = 0; e < scores.size(); ++e) along += factor * counts[e] * scores[e] / sum;
        for (size_t e = 0; e < scores.size(); ++e) dscores[e] += (factor * counts[e] - along) / sum;
    }
    void add_z(const Tokens& t, std::vector<double>& dlogits, size_t n) const {
        const std::span<const float> row(&t.logits[n * dlogits.size()], dlogits.size());
        const std::vector<double> p = scores_of(row, ops::RouterScore::softmax);
        const double lse = double(row[0]) - std::log(p[0]),
                     factor = balance_->options.z_coefficient /
                              (double(t.routes.size()) * double(balance_->micro_batches));
        for (size_t e = 0; e < p.size(); ++e) dlogits[e] += factor * 2 * lse * p[e];
    }
    static Tensor from_floats(const std::vector<float>& values, Shape shape, DType dtype) {
        const Tensor wide = Tensor::from_host<float>(values, shape, Memory::workspace);
        if (dtype == DType::fp32) return wide;
        const Tensor narrow = activation(shape, dtype);
        ops::copy(narrow, wide);
        return narrow;
    }
    static Tensor rows_of(const Tensor& x, const std::vector<int32_t>& rows) {
        const Tensor index =
            Tensor::from_host<int32_t>(rows, {int64_t(rows.size())}, Memory::workspace);
        const Tensor out = activation({int64_t(rows.size()), x.cols()}, x.dtype());
        ops::gather_rows(out, x, index);
        return out;
    }
    int64_t layer_;
    std::shared_ptr<OneDeviceBalance> balance_;
    Parameter* gate_;
    Tensor bias_;
    std::vector<std::unique_ptr<SwiGLU>> experts_;
    std::vector<Parameter*> expert_parameters_;  // gate, up and down of each
    std::unique_ptr<SwiGLU> shared_;
    int64_t step_ = 0;
};

// The plain layers with which --verify compares (lab/one_device_experts.h).
inline std::function<void(ModuleFactories&)> plain_parts(const StepShape& shape,
                                                         const ExpertOptions& o,
                                                         int64_t micro_batches,
                                                         ChoiceLog& choices) {
    return [=, &choices](ModuleFactories& factories) {
        choices.plain().begin_training();
        const auto balance = std::make_shared<OneDeviceBalance>(
            shape.config, o, o.counts_first() ? 1 : micro_batches, shape.micro_batch * shape.seq,
            choices.plain());
        set_experts(
            factories, shape.config, shape.model,
            [balance](ParameterList& list, const ModuleFactories& plain, const ModulePath& layer) {
                return std::make_unique<OneDeviceExperts>(list, plain, layer, balance);
            });
    };
}

}  // namespace ultrascale::expert_parallel
