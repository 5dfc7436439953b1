// --trap: the mistakes that are made outside of the routers and of their losses.
#pragma once

#include <memory>

#include "../expert_options.h"
#include "train/updater.h"

namespace ultrascale::expert_parallel {

// As if every rank held copies of the same experts. Before their parameters have storage.
inline void spoil_description(ParameterList& parameters, ExpertTrap trap) {
    if (trap != ExpertTrap::experts_summed_over_ep) return;
    for (const auto& p : parameters) p->split_over.clear();
}

// Makes a mistake with the gradients of experts, when they have been summed.
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
