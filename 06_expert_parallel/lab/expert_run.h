// What a run of this chapter sees besides its losses: the loads of the experts, the rows that
// travelled, and with --trap the mistake.
#pragma once

#include "lab/verify/whole_values.h"
#include "predict.h"
#include "train/gradients.h"
#include "train/run.h"

namespace ultrascale::expert_parallel {

// A forward of all micro-batches that only counts choices, for --aux-over global. Nothing is kept,
// and the head is left out. All ranks call it.
inline void count_choices(Step& step, Llama& model, ExpertParallel& experts) {
    experts.balance().count_only(true);
    step.call_hooks({});
    for (int64_t m = 0; m < step.accumulated; ++m) {
        Context context = step.micro_batch(m);
        context.training = false, context.as_trained = true;
        Saved nothing;
        Tensor x;
        for (const Unit& unit : model.units())
            if (&unit != &model.units().back())
                x = model.forward_unit(unit, std::move(x), nothing, context);
    }
    experts.balance().count_only(false);
    experts.balance().counted(experts.all());
}

class ExpertRun {
public:
    // The most that this rank's activations take in a step, in bytes, in which each micro-batch had
    // these rows.
    using Peak = std::function<double(const std::map<int, DispatchStatistics::ByLayer>& rows)>;
    // `peak`: a composition's own; by default that of one micro-batch after the other through a
    // whole model.
    ExpertRun(const StepShape& shape, const ExpertOptions& options, ExpertParallel& experts,
              Peak peak = {})
        : shape_(shape), options_(options), experts_(experts), peak_of_step_(std::move(peak)) {
        if (!peak_of_step_)
            peak_of_step_ = [this](const std::map<int, DispatchStatistics::ByLayer>& rows) {
                double most = 0;
                for (const auto& [m, layers] : rows)
                    most = std::max(most, peak_activations(shape_, options_, layers));
                return most;
            };
        experts.statistics().clear();
    }
    ExpertRun(const ExpertRun&) = delete;  // peak_of_step_ keeps a pointer to it
    const ExpertOptions& options() const { return options_; }

    // At the end of each step.
    void add(StepLoads loads) {
        loads_.push_back(std::move(loads));
        const CapacityPlan::Dropped dropped = experts_.capacity().end_step();
        dropped_.choices += dropped.choices, dropped_.dropped += dropped.dropped;
        const std::map<int, DispatchStatistics::ByLayer> rows = experts_.statistics().end_step();
        peak_ = std::max(peak_, peak_of_step_(rows));
        for (const auto& [m, layers] : rows)
            for (const auto& [layer, layer_rows] : layers) {
                most_rows_ = std::max(most_rows_, layer_rows.at_experts);
                all_rows_ += layer_rows.at_experts, ++forwards_;
            }
    }
    const std::vector<StepLoads>& loads() const { return loads_; }     // of each step
    const CapacityPlan::Dropped& dropped() const { return dropped_; }  // on this rank
    // Rows that this rank's experts had in a forward of a layer: the most, if all experts had
    // equally many, and on average.
    int64_t most_rows() const { return most_rows_; }
    double even_rows() const {
        return double(experts_.tokens(shape_.micro_batch * shape_.seq) *
                      shape_.config.experts.router.top_k);
    }
    double mean_rows() const { return double(all_rows_) / double(std::max<int64_t>(forwards_, 1)); }
    const DispatchStatistics& statistics() const { return experts_.statistics(); }
    const PredictedCommunication& travelled() const { return experts_.statistics().sent(); }

    // Of the whole run, for the rows that came.
    Prediction predicted(const Prediction& fixed, int64_t steps) const {
        Prediction all = fixed.times(steps);
        all.communication += travelled();
        all.memory.peak_activations = std::llround(std::min(peak_, 9e18));
        all.memory.peak_communication += experts_.receive_buffer().bytes();
        return all;
    }

    // ---- --trap ----

    void spoil_gradients(const ParameterList& parameters) const {
        if (options_.trap != ExpertTrap::experts_divided_by_ep) return;
        for (const auto& p : parameters)
            if (!p->split_over.empty()) ops::scale(p->grad, 1 / float(options_.ep));
    }
    // Of the first step the norm is also added up rank by rank, without the mesh.
    Tensor squared_norm(Updater& updater, const ParameterList& parameters, const Mesh& mesh) {
        const Tensor squared = mesh_squared_norm(updater, parameters);
        if (norm_apart_ < 0) {
            std::vector<Tensor> grads;
            for (const auto& p : parameters)
                if (p->name.find(".experts.") != p->name.npos ? mesh.group("dp").rank() == 0
                                                              : mesh.world().rank() == 0)
                    grads.push_back(p->grad);
            double sum = 0;
            for (const std::string& rank_sum : mesh.world().gather_strings(
                     bytes_of<double>(sum_of_squares(grads).to_host<double>())))
                sum += from_bytes<double>(rank_sum)[0];
            norm_apart_ = std::abs(scalar(squared) / sum - 1);
        }
        return squared;
    }
    // Prints how far apart both are. Returns false if they differ.
    bool check_norm(Report& report) const {
        const bool ok = norm_apart_ <= 1e-6;
        print(
            fmt::format("  norm      step 1, each element counted once   {:>9.2e} <= 1.0e-06  "
                        "fixed      {}",
                        norm_apart_, ok ? "ok" : "MISSED"));
        report.value("verify", "norm", norm_apart_);
        return ok;
    }

private:
    Tensor mesh_squared_norm(Updater& updater, const ParameterList& parameters) const {
        if (options_.trap != ExpertTrap::norm_without_experts) return updater.squared_norm();
        // As if an expert of another rank were a copy of one here.
        std::vector<Parameter*> experts;
        for (const auto& p : parameters)
            if (!p->split_over.empty()) experts.push_back(p.get());
        for (Parameter* p : experts) p->split_over.clear();
        const Tensor squared = updater.squared_norm();
        for (Parameter* p : experts) p->split_over = {"ep"};
        return squared;
    }

    StepShape shape_;
    ExpertOptions options_;
    ExpertParallel& experts_;
    Peak peak_of_step_;
    std::vector<StepLoads> loads_;
    CapacityPlan::Dropped dropped_;
    double norm_apart_ = -1;
    double peak_ = 0;
    int64_t most_rows_ = 0, all_rows_ = 0, forwards_ = 0;
};

}  // namespace ultrascale::expert_parallel
