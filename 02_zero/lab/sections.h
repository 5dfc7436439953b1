// The report's sections that only this chapter has: the playbook's formula, whether buffers keep a
// constant size, the time of offloaded updates, and the copies of offloaded activations.
#pragma once

#include <algorithm>
#include <numeric>

#include "../7_offload.h"
#include "../7_offload_activations.h"
#include "lab/predict/estimate.h"
#include "lab/report/report.h"
#include "predict.h"
#include "train/run.h"

namespace ultrascale::zero {

// --optimizer muon: what flat shards would cut, how the matrices are dealt, and what the five steps
// of Newton-Schulz cost this rank and all ranks together.
inline void print_muon(Report& report, const ParameterList& parameters, const Communicator& ranks) {
    const WholeMatrices dealt = deal_matrices(parameters, ranks.size());
    const int64_t n = ranks.size(), flat = (parameters.local_numel() + n - 1) / n;
    int64_t matrices = 0, cut = 0, at = 0;
    for (const auto& p : parameters) {
        const int64_t first = at / flat, last = (at + p->local_numel() - 1) / flat;
        at += p->local_numel();
        if (Muon::updates(*p)) ++matrices, cut += first != last;
    }
    std::vector<double> flops(size_t(n), 0.0);
    for (const auto& [parameter, at] : dealt.places)
        if (Muon::updates(*parameter))
            flops[size_t(at / dealt.part)] += double(Muon::flops(parameter->shape));
    const double most = std::ranges::max(flops),
                 all = std::accumulate(flops.begin(), flops.end(), 0.0);
    print(fmt::format(
        "muon: {} matrices, each whole on one rank; equal flat shards would cut through {}",
        matrices, cut));
    print(
        fmt::format("  parts of {} numbers, {:.1f} % more than 1/{} of all; Newton-Schulz takes "
                    "the busiest rank "
                    "{:.3g}\n  GFLOP a step, {:.3g} times the mean",
                    dealt.part, 100 * (double(dealt.part) / double(flat) - 1), n, most / 1e9,
                    most / (all / double(n))));
    report.value("muon", "matrices", double(matrices));
    report.value("muon", "cut_by_flat_shards", double(cut));
    report.value("muon", "part", double(dealt.part));
    report.value("muon", "busiest_flops", most);
    report.value("muon", "all_flops", all);
}

// How many ranks share a set of shards.
inline int ranks_of_a_set(const ZeroOptions& zero) {
    return zero.shard_size > 0 ? zero.shard_size : Communicator::world().size();
}

// Prints the playbook's formula for Psi parameters on n ranks, in bf16 or in fp32 (k = 8: no master
// weights), below what was measured.
inline void print_formula(const ZeroOptions& zero, const StepShape& shape, int n) {
    const double psi = double(parameter_count(shape.config)),
                 value = double(dtype_bytes(shape.model.dtype)),
                 grad = double(dtype_bytes(shape.grad_dtype)),
                 k = double(optimizer_bytes(shape.model.dtype));
    const double values = value * psi / (zero.stage >= 3 ? n : 1),
                 grads = grad * psi / (zero.stage >= 2 ? n : 1);
    const double states = k * psi / (zero.stage >= 1 ? n : 1);
    const auto over = [&](int from) { return zero.stage >= from ? fmt::format("/{}", n) : ""; };
    const std::string states_formula = fmt::format("{}Psi{}", k, over(1));
    print(fmt::format("  the formula, without padding: {}Psi{} + {}Psi{}{} = {}{}", value, over(3),
                      grad, over(2), zero.offload ? "" : " + " + states_formula,
                      format_bytes(values + grads + (zero.offload ? 0 : states)),
                      zero.offload ? fmt::format(", and on the host {} = {}", states_formula,
                                                 format_bytes(states))
                                   : ""));
}

// ZeRO-R: buffers of constant size (C_B) and no growing fragmentation (M_D). Both should settle
// after a few steps and not change any more.
constexpr int64_t settled_steps = 10;
struct Occupancy {
    // bytes: the peak of gathered tensors so far; what the allocator holds beyond all tensors' peak
    int64_t buffers, fragmentation;
};
inline Occupancy occupancy() {
    return {memory_peak_by_category()[int(Memory::communication)], device_overhead().fragmentation};
}

inline bool print_constancy(Report& report, const Occupancy& early, int64_t steps) {
    const Occupancy late = occupancy();
    const bool constant = late.buffers == early.buffers;
    if (report.full() || !constant)
        print(fmt::format("  from step {} to {}: buffers {} -> {}, fragmentation {} -> {}{}",
                          settled_steps, steps, format_bytes(double(early.buffers)),
                          format_bytes(double(late.buffers)),
                          format_bytes(double(early.fragmentation)),
                          format_bytes(double(late.fragmentation)), constant ? "" : "   MISMATCH"));
    report.value("constancy", "buffers_early", double(early.buffers));
    report.value("constancy", "buffers_late", double(late.buffers));
    report.value("constancy", "fragmentation_early", double(early.fragmentation));
    report.value("constancy", "fragmentation_late", double(late.fragmentation));
    return as_predicted_everywhere(constant);
}

// Prints how long the parts of an update on the host take, on rank 0, if there are any.
inline void print_offload(Report& report, Updater& updater) {
    auto* const on_host = dynamic_cast<OnHost*>(&updater);
    if (!on_host) return;
    const OffloadedUpdate::Times times = on_host->update->times();
    print("\noffloaded update, per step       bytes    time ms       GB/s");
    const auto row = [&](const char* name, const OffloadedUpdate::Part& part) {
        print(fmt::format("  {:<24} {:>12} {:>10.2f} {:>10.1f}", name,
                          format_bytes(part.bytes / times.steps), part.seconds * 1e3 / times.steps,
                          part.bytes / part.seconds * 1e-9));
        report.value("offload", fmt::format("{}_bytes", name), part.bytes / times.steps);
        report.value("offload", fmt::format("{}_seconds", name), part.seconds / times.steps);
    };
    row("gradients to the host", times.fetched);
    row("AdamW on the host", times.updated);
    row("weights to the device", times.sent);
    print(fmt::format("  {:<24} {:>12} {:>10.2f}", "side by side", "",
                      times.seconds * 1e3 / times.steps));
    report.value("offload", "update_seconds", times.seconds / times.steps);
}

// --offload activations: prints the bytes copied in `steps` steps beside their prediction. Returns
// whether they are equal.
inline bool print_activations_on_host(Report& report, const ActivationsOnHost& inputs,
                                      int64_t predicted, int64_t steps) {
    const bool same = inputs.bytes_to_host() == predicted && inputs.bytes_to_device() == predicted;
    print("\nlayers' inputs, per step     predicted       measured");
    const auto row = [&](const char* name, int64_t bytes) {
        print(fmt::format("  {:<22} {:>12}   {:>12}   {}", name,
                          format_bytes(double(predicted) / double(steps)),
                          format_bytes(double(bytes) / double(steps)),
                          bytes == predicted ? "equal" : "MISMATCH"));
    };
    row("to the host", inputs.bytes_to_host());
    row("to the device", inputs.bytes_to_device());
    report.value("offload", "inputs_bytes", double(inputs.bytes_to_host()) / double(steps));
    return as_predicted_everywhere(same);
}

// Describes the training to Run, for the header and verification.
inline TrainingSetup setup(Llama& model, Updater& updater, const Options& options,
                           const ZeroOptions& zero) {
    const int ranks = Communicator::world().size();
    TrainingSetup what = training_setup(model, updater);
    what.label = "ZeRO", what.technique = describe(zero, ranks);
    what.layout = {{"dp", ranks}};
    what.not_equal = why_not_equal(zero);
    what.bounds = bounds_of(zero, verify_bounds(options.dtype));
    return what;
}

// Prints all of the report but verification. Returns false if a prediction is not met.
inline bool print_sections(Report& report, const Run& run, const Prediction& predicted,
                           const Options& options, const StepShape& shape, const ZeroOptions& zero,
                           const Occupancy& early, const ParameterList& parameters,
                           Updater& updater, const std::optional<ActivationsOnHost>& inputs) {
    bool ok = report.memory(predicted);
    if (report.full() && !zero.muon) print_formula(zero, shape, ranks_of_a_set(zero));
    if (options.steps > settled_steps) ok = print_constancy(report, early, options.steps) && ok;
    ok = report.communication(predicted, options.steps, run.validation_communication()) && ok;
    print_offload(report, updater);
    if (zero.muon) print_muon(report, parameters, Communicator::world());
    const int64_t copied = options.steps * options.grad_accum * kept_on_host(shape);
    if (inputs) ok = print_activations_on_host(report, *inputs, copied, options.steps) && ok;
    report.throughput(predicted);
    return ok;
}

}  // namespace ultrascale::zero
