// The parts of the report that only this program has: its bounds, the axes and the links that they
// cross; and --estimate.
#pragma once

#include "04_context_parallel/lab/bounds.h"
#include "06_expert_parallel/lab/expert_run.h"
#include "06_expert_parallel/lab/one_device_experts.h"
#include "08_mixed_precision/lab/bounds.h"
#include "documents.h"
#include "options.h"
#include "train/run.h"

namespace ultrascale::five_d {

// The bounds within which --verify lets a run differ from plain training, if numbers are rounded.
inline VerifyBounds bounds_of(const Techniques& t, DType dtype) {
    if (t.precision.recipe.fp8()) return recipe_bounds(t.precision.recipe);
    return bounds_of(t.zero, bounds_of(t.context, dtype));
}

// The axes' sizes, for the report.
inline JsonFields layout_of(const Axes& axes) {
    JsonFields layout;
    for (const Mesh::Axis& axis : axes.outermost_first())
        layout.emplace_back(axis.name, int64_t(axis.size));
    return layout;
}

// The share of an axis' pairs of neighbours that are on different nodes.
inline double between_nodes(const Axes& axes, const std::string& axis, const Nodes& nodes) {
    const int step = axes.stride(axis), n = axes.size(axis),
              ranks = axes.dp * axes.tp * axes.cp * axes.ep * axes.pp;
    int crossing = 0, all = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        const int coordinate = rank / step % n,
                  next = rank + ((coordinate + 1) % n - coordinate) * step;
        ++all, crossing += nodes.between(rank, next);
    }
    return double(crossing) / all;
}

// Prints which axes have neighbours on other nodes. (The report shows what they send, by group.)
inline void print_axes(Report& report, const Techniques& techniques, int node_size) {
    const Axes& axes = techniques.axes;
    print("\naxes, neighbours first         ranks   rank +" +
          (node_size > 0 ? fmt::format("       on other nodes of {}", node_size) : ""));
    for (const std::string& axis : axes.order) {
        if (axes.size(axis) == 1) continue;
        std::string line =
            fmt::format("  {:<29}{:>5}   {:>6}", axis, axes.size(axis), axes.stride(axis));
        JsonFields row{{"table", "axes"},
                       {"axis", axis},
                       {"ranks", int64_t(axes.size(axis))},
                       {"stride", int64_t(axes.stride(axis))}};
        if (node_size > 0) {
            const double away = between_nodes(axes, axis, {.ranks = node_size});
            line += fmt::format("{:>20.0f} % of neighbours", 100 * away);
            row.emplace_back("between_nodes", away);
        }
        print(line);
        report.row(row);
    }
}

// From now on records the rows that experts get, for the predictions.
inline std::unique_ptr<ExpertRun> watch_rows(Composition& all, const WatchedDocuments& documents,
                                             ChoiceLog* choices = nullptr) {
    auto run = std::make_unique<ExpertRun>(
        all.shape, all.techniques.experts, *all.experts, choices,
        [&](const auto& rows) { return peak_activations(all, rows, documents.memory()); });
    all.executor.kernels_loaded = [run = run.get(), before = all.executor.kernels_loaded] {
        before();
        run->clear();
    };
    return run;
}

// Watches a run's experts: their choices, for --verify, and their rows, for the predictions.
class WatchedExperts {
public:
    // Completes what verify needs to know; `what` has its bounds already.
    WatchedExperts(const Options& options, Composition& all, const WatchedDocuments& documents,
                   TrainingSetup& what)
        : steps_(options.steps),
          choices_(all.shape.config, what.bounds.value(), all.tokens),
          seen_(watch_rows(all, documents, &choices_)) {
        what.plain_parts = plain_parts(all.shape, all.techniques.experts,
                                       options.grad_accum * all.data_slice().count, choices_);
        what.choices = &choices_;
        what.options = recorded(all.techniques.experts);
        what.plain_micro_batch = all.techniques.experts.counts_first() ? 0 : options.micro_batch;
    }
    WatchedExperts(const WatchedExperts&) = delete;
    void end_step() { choices_.end_step(); }
    Prediction predicted(const Prediction& step_prediction) const {
        return seen_->predicted(step_prediction, steps_);
    }

private:
    int64_t steps_;
    ChoiceLog choices_;
    std::unique_ptr<ExpertRun> seen_;
};

inline std::string needs_less() {
    return "more ranks along any axis, --zero 3 or --recompute full need less";
}

// --estimate: parameters are only described, and nothing is allocated.
inline void print_estimate(const Options& options, const Techniques& techniques,
                           const StepShape& shape) {
    Composition all(options, shape, techniques);
    check_experts(all);
    const int64_t replicas = all.data_slice().count;
    Report report("09_5d_parallel", options, shape, 0);
    report.configuration(sequences_of_step(options, replicas), "", replicas);
    report.technique("layout", describe(techniques), layout_of(techniques.axes));
    report.estimate(predict_balanced(all), 1, needs_less);
    print_axes(report, techniques, options.node_size);
    report.finish();
}

}  // namespace ultrascale::five_d
