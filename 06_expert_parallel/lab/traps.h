// --trap: a deliberate mistake, made by a part that replaces the right one: a router, or the
// updater.
#pragma once

#include <memory>

#include "../expert_parallel.h"
#include "train/updater.h"

namespace ultrascale::expert_parallel {

// The deliberate mistakes. --verify catches each of them: README.md says how.
enum class ExpertTrap {
    none,
    groups_masked_with_0,     // groups that are not chosen compete with a score of 0
    weights_from_biased,      // weights contain the bias that is meant for the choice alone
    softmax_twice,            // the auxiliary loss takes the softmax of probabilities
    experts_summed_over_ep,   // experts' gradients are summed over ranks with other experts
    experts_divided_by_ep,    // they are divided by ep, as if they were means
    norm_without_experts,     // the norm that clips counts only this rank's experts
    aux_times_micro_batches,  // each micro-batch adds the whole auxiliary loss
    scales_of_neighbour,      // a row in fp8 travels with the scales of the row before it
    copies_apart,             // an expert's copies keep the gradients of their own rows
};

// A router that makes one of the first three mistakes, or the last one. It runs on the host, since
// no correct program needs it.
class TrappedRouter : public Router {
public:
    // `accumulated`: micro-batches a step on this rank.
    TrappedRouter(ParameterList& list, const ModulePath& block, const LlamaConfig& config,
                  const ExpertOptions& options, LoadBalance& balance, ExpertTrap trap,
                  int64_t accumulated)
        : Router(list, block, config, options, balance), trap_(trap), accumulated_(accumulated) {
        if (trap == ExpertTrap::groups_masked_with_0) settings_.masked = 0;
    }

private:
    void choose(const Routed& routed, const Tensor& scores, const Tensor& logits) const override {
        Router::choose(routed, scores, logits);
        if (trap_ == ExpertTrap::weights_from_biased) add_bias_to_weights(routed, scores);
    }
    Tensor auxiliary_gradient(const Tensor& scores, const Context& context) const override {
        Tensor dscores = Router::auxiliary_gradient(scores, context);
        if (dscores && trap_ == ExpertTrap::softmax_twice) through_softmax(dscores, scores);
        if (dscores && trap_ == ExpertTrap::aux_times_micro_batches)
            ops::scale(dscores, float(accumulated_));
        return dscores;
    }
    void add_bias_to_weights(const Routed& routed, const Tensor& scores) const {
        const int64_t k = settings_.top_k, E = scores.cols();
        const std::vector<float> s = scores.to_host<float>(), bias = bias_.to_host<float>();
        const std::vector<int32_t> experts = routed.experts.to_host<int32_t>();
        std::vector<float> weights(experts.size());
        for (size_t n = 0; n < experts.size() / size_t(k); ++n) {
            double sum = 1e-20;
            for (size_t i = n * size_t(k); i < (n + 1) * size_t(k); ++i)
                sum += double(weights[i] =
                                  s[n * size_t(E) + size_t(experts[i])] + bias[size_t(experts[i])]);
            for (size_t i = n * size_t(k); i < (n + 1) * size_t(k); ++i)
                weights[i] *= float(settings_.scaling / (settings_.renormalise ? sum : 1));
        }
        Tensor(routed.weights).copy_from_host(weights.data());
    }
    // The gradient of a loss that reads softmax(scores).
    static void through_softmax(Tensor& dscores, const Tensor& scores) {
        const int64_t E = scores.cols();
        const std::vector<float> s = scores.to_host<float>();
        std::vector<float> d = dscores.to_host<float>();
        for (size_t at = 0; at < s.size(); at += size_t(E)) {
            const std::span<const float> row(&s[at], size_t(E));
            const std::vector<double> p = scores_of(row, ops::RouterScore::softmax),
                                      dp(d.begin() + long(at), d.begin() + long(at) + E),
                                      into = logit_gradient(p, dp, ops::RouterScore::softmax);
            std::copy(into.begin(), into.end(), d.begin() + long(at));
        }
        dscores.copy_from_host(d.data());
    }

    ExpertTrap trap_;
    int64_t accumulated_;
};

// Call it before the model is built.
inline void spoil_routers(ExpertParallel& experts, const LlamaConfig& config,
                          const ExpertOptions& options, ExpertTrap trap, int64_t accumulated) {
    if (trap == ExpertTrap::none) return;
    experts.make_router = [=](ParameterList& list, const ModulePath& block, LoadBalance& balance) {
        return std::make_unique<TrappedRouter>(list, block, config, options, balance, trap,
                                               accumulated);
    };
}

// Call it when all other observers are set.
inline void spoil_packed_rows(ExpertParallel& experts, ExpertTrap trap) {
    if (trap != ExpertTrap::scales_of_neighbour) return;
    experts.see_packed = [before = experts.see_packed](const Tensor& rows, const Tensor& packed) {
        if (before) before(rows, packed);
        std::vector<char> bytes(size_t(packed.bytes()));
        packed.copy_to_host(bytes.data());
        const int64_t h = rows.cols(), row = packed.bytes() / rows.rows();
        for (int64_t n = rows.rows() - 1; n > 0; --n)
            std::copy_n(&bytes[size_t((n - 1) * row + h)], row - h, &bytes[size_t(n * row + h)]);
        Tensor(packed).copy_from_host(bytes.data());
    };
}

// Describes experts as if every rank held copies of them, or as if no expert had any. Call it
// before their parameters have storage.
inline void spoil_description(ParameterList& parameters, ExpertTrap trap) {
    for (const auto& p : parameters) {
        if (trap == ExpertTrap::experts_summed_over_ep) p->split_over.clear();
        if (trap == ExpertTrap::copies_apart) p->replica_groups.clear();
    }
}

// Makes a mistake with the gradients of experts after they have been summed.
class SpoilingUpdater : public PlainUpdater {
public:
    SpoilingUpdater(ParameterList& parameters, const Options& options, const Mesh& mesh,
                    ExpertTrap trap)
        : PlainUpdater(parameters, options, &mesh), trap_(trap) {
        for (const auto& p : parameters)
            if (!p->split_over.empty()) experts_.push_back(p.get());
    }

private:
    Tensor sum_squares() override {
        if (trap_ == ExpertTrap::experts_divided_by_ep)
            for (Parameter* p : experts_) ops::scale(p->grad, 1 / float(mesh_->group("ep").size()));
        if (trap_ != ExpertTrap::norm_without_experts) return PlainUpdater::sum_squares();
        // As if an expert of another rank were a copy of one here.
        for (Parameter* p : experts_) p->split_over.clear();
        const Tensor squared = PlainUpdater::sum_squares();
        for (Parameter* p : experts_) p->split_over = {"ep"};
        return squared;
    }

    ExpertTrap trap_;
    std::vector<Parameter*> experts_;
};

inline std::unique_ptr<Updater> make_updater(ParameterList& parameters, const Options& options,
                                             const Mesh& mesh, ExpertTrap trap) {
    if (trap == ExpertTrap::none) return std::make_unique<PlainUpdater>(parameters, options, &mesh);
    return std::make_unique<SpoilingUpdater>(parameters, options, mesh, trap);
}

}  // namespace ultrascale::expert_parallel
