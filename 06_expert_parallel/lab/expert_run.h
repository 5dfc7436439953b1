// Observations of a run of this chapter: the loads of the experts, the rows that travelled, and the
// gradient's norm, added up in another way.
#pragma once

#include <sstream>

#include "choices.h"
#include "lab/verify/whole_values.h"
#include "one_device_fp8.h"
#include "predict.h"
#include "train/gradients.h"
#include "train/run.h"

namespace ultrascale::expert_parallel {

class ExpertRun {
public:
    // The most bytes that this rank's activations take in a step whose micro-batches had these
    // rows.
    using Peak = std::function<double(const std::map<int, DispatchStatistics::ByLayer>& rows)>;
    // `choices` (may be nullptr) are recorded, too. `peak`: a composition's own; by default that of
    // micro-batches that pass a whole model one after the other.
    ExpertRun(const StepShape& shape, const ExpertOptions& options, ExpertParallel& experts,
              ChoiceLog* choices = nullptr, Peak peak = {})
        : shape_(shape),
          options_(options),
          experts_(experts),
          statistics_(shape, options),
          peak_of_step_(std::move(peak)) {
        if (!peak_of_step_)
            peak_of_step_ = [this](const std::map<int, DispatchStatistics::ByLayer>& rows) {
                return peak_activations(shape_, options_, rows);
            };
        experts.see_dispatch = [this, choices](const Dispatched& d, const Context& context) {
            if (choices) choices->add(d, context);
            add(d, context);
        };
        experts.see_packed = [this](const Tensor& x, const Tensor& packed) {
            if (!loads_.empty()) return;  // only in the first step
            const Tensor back = Tensor::empty(x.shape(), x.dtype(), Memory::workspace);
            ops::unpack_fp8_rows(back, packed);
            rounding_.add(x.to_host_float(), back.to_host_float(), x.cols());
        };
        experts.see_loads = [this](const StepLoads& loads) { add(loads); };
    }
    ExpertRun(const ExpertRun&) = delete;  // others keep a pointer to it

    void add(const Dispatched& d, const Context& context) {
        // Several stages have no buffer that stays.
        const bool in_buffer = d.exchanges.size() == 1 && experts_.receive_bytes() > 0;
        statistics_.add(d, context, in_buffer);
        if (context.drops() && d.backward_follows)
            accepted_.insert(accepted_.end(), d.accepted.begin(), d.accepted.end());
    }
    void add(const StepLoads& loads) {
        loads_.push_back(loads);
        for (const auto& [counts, capacity] : std::exchange(accepted_, {}))
            for (const int64_t n : counts.to_host<int32_t>()) {
                dropped_.choices += n;
                dropped_.dropped += std::max<int64_t>(n - capacity, 0);
            }
        const std::map<int, DispatchStatistics::ByLayer> rows = statistics_.end_step();
        peak_ = std::max(peak_, peak_of_step_(rows));
        std::map<int64_t, double> in_layer;
        for (const auto& [m, layers] : rows)
            for (const auto& [layer, layer_rows] : layers) {
                in_layer[layer] += double(layer_rows.at_experts);
                most_rows_ = std::max(most_rows_, layer_rows.at_experts);
                all_rows_ += layer_rows.at_experts, ++forwards_;
            }
        rows_of_steps_.emplace_back();
        for (const auto& [layer, n] : in_layer) rows_of_steps_.back().push_back(n);
    }
    // Forgets the dispatches so far: those of steps that are not measured.
    void clear() { statistics_.clear(), accepted_.clear(); }

    const std::vector<StepLoads>& loads() const { return loads_; }  // for each step
    // The rows of this rank's experts, for each step, in each layer with experts.
    const std::vector<std::vector<double>>& rows_of_steps() const { return rows_of_steps_; }
    const std::vector<Placement>& placements() const { return experts_.placements(); }
    struct Dropped {
        int64_t choices = 0, dropped = 0;  // of all choices the dropped ones
    };
    const Dropped& dropped() const { return dropped_; }          // on this rank
    const RoundingError& rounding() const { return rounding_; }  // of rows in fp8, in step 1
    // The rows that this rank's experts had in a forward of a layer: the most, the number if all
    // experts had equally many, and the average.
    int64_t most_rows() const { return most_rows_; }
    double even_rows() const {
        return double(experts_.tokens(shape_.micro_batch * shape_.seq) *
                      shape_.config.experts.router.top_k);
    }
    double mean_rows() const { return double(all_rows_) / double(std::max<int64_t>(forwards_, 1)); }
    const DispatchStatistics& statistics() const { return statistics_; }
    PredictedCommunication travelled() const { return sent_of(statistics_); }

    // The prediction for the whole run, for the rows that arrived.
    Prediction predicted(const Prediction& fixed, int64_t steps) const {
        Prediction all = fixed.times(steps);
        all.communication += travelled();
        all.memory.peak_activations = std::llround(std::min(peak_, 9e18));
        all.memory.peak_communication += experts_.receive_bytes();
        return all;
    }

    // Adds up step 1's squared norm a second time: every rank's sums, each parameter's once.
    void count_norm(double squared, const ParameterList& parameters, const Communicator& world) {
        if (norm_apart_ >= 0) return;
        std::string mine;
        for (const auto& p : parameters)
            mine += fmt::format("{} {:.17g}\n", p->name,
                                sum_of_squares({p->grad}).to_host<double>()[0]);
        std::map<std::string, double> by_name;
        for (const std::string& rank_sums : world.gather_strings(mine)) {
            std::istringstream in(rank_sums);
            std::string name;
            for (double sum; in >> name >> sum;) by_name.emplace(name, sum);
        }
        double sum = 0;
        for (const auto& [name, of_parameter] : by_name) sum += of_parameter;
        norm_apart_ = std::abs(squared / sum - 1);
    }
    // Prints how much the two norms differ. Returns false if it is too much.
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
    StepShape shape_;
    ExpertOptions options_;
    ExpertParallel& experts_;
    DispatchStatistics statistics_;
    std::vector<Dispatched::Accepted> accepted_;
    Peak peak_of_step_;
    std::vector<StepLoads> loads_;
    std::vector<std::vector<double>> rows_of_steps_;
    Dropped dropped_;
    RoundingError rounding_;
    double norm_apart_ = -1;
    double peak_ = 0;
    int64_t most_rows_ = 0, all_rows_ = 0, forwards_ = 0;
};

}  // namespace ultrascale::expert_parallel
