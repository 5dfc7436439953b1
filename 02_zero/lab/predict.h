// Predicts what a stage holds and communicates by formula, from the layout alone.
#pragma once

#include <ranges>
#include <set>

#include "../9_stages.h"
#include "lab/predict/budget.h"
#include "lab/predict/estimate.h"
#include "lab/report/report.h"
#include "shared_options.h"
#include "train/run.h"
#include "walk.h"

namespace ultrascale::zero {

// The number of parameters of the whole model, without padding.
inline int64_t parameters_of(const FlatLayout& layout) {
    int64_t numel = 0;
    for (size_t u = 0; u < layout.size(); ++u) numel += layout[u].numel;
    return numel;
}

// Walks through the passes of a rank's step, one micro-batch after the other, as this chapter does.
inline ZeroWalk walk_step(const FlatLayout& layout, const std::vector<const Unit*>& units,
                          const ZeroOptions& zero, const StepShape& shape, int64_t A,
                          InLayer in_layer = {}) {
    ZeroWalk walk(layout, units, zero, shape.model.dtype, shape.grad_dtype, in_layer);
    // The first micro-batch, the ones in between, which are alike, and the last one.
    for (const int64_t m : std::set<int64_t>{0, std::min<int64_t>(1, A - 1), A - 1}) {
        const bool last = m + 1 == A, between = m > 0 && !last;
        walk.begin_micro_batch(last, between ? A - 2 : 1);
        for (const Unit* unit : units) walk.pass(*unit, Pass::forward);
        for (const Unit* unit : units | std::views::reverse) walk.pass(*unit, Pass::backward);
        walk.end_micro_batch();
    }
    return walk;
}

// Adds what sharding determines: this rank's parameters, gradients and optimizer states, and the
// communication of a step with A micro-batches, whose passes have been walked. It is exact to the
// byte: it includes the padding of 2_flat_layout.h, for which there are no optimizer states. In
// units of (n-1)/n Psi (Psi: the bytes of all parameters) stages 0 to 3 send 2, 2, A + 1, and 3 A
// minus what stage 3 need not gather twice. With --keep-gathered on stage 3 sends A + 1 as well,
// with --cut model 2 A. If gradients are summed over further groups of `mesh`
// (sum_over_replica_groups), their shards travel.
inline void add_to(Prediction& prediction, const FlatLayout& layout, const ZeroOptions& zero,
                   const StepShape& shape, int64_t A, const ZeroWalk& walk, const Mesh& mesh) {
    MemoryEstimate& m = prediction.memory;
    const int64_t whole = layout.padded();
    // The elements of this rank's shards; of the largest shard; of the shards without padding.
    int64_t shard = 0, largest = 0, owned = 0;
    for (size_t u = 0; u < layout.size(); ++u) {
        shard += layout[u].shard;
        largest = std::max(largest, layout[u].shard);
        const int64_t before = layout[u].group->rank() * layout[u].shard;
        owned += std::clamp<int64_t>(layout[u].numel - before, 0, layout[u].shard);
    }
    const int64_t value_bytes = dtype_bytes(shape.model.dtype),
                  grad_bytes = dtype_bytes(shape.grad_dtype);
    const int64_t states =
        (zero.stage >= 1 ? owned : parameters_of(layout)) * optimizer_bytes(shape.model.dtype);
    m.parameters += (zero.stage == 3 ? shard : whole) * value_bytes;
    const int S = zero.secondary_shard;
    if (S > 0) m.parameters += whole / S * value_bytes;
    m.gradients += (zero.stage >= 2 ? shard : whole) * grad_bytes;
    if (zero.every_micro_batch && zero.stage < 2)
        m.gradients += (zero.stage == 1 ? shard : whole) * grad_bytes;  // the separate sums
    if (zero.offload)  // 7_offload.h: states, weights, two buffers for gradients, the norm
        m.host += states + shard * value_bytes + 2 * largest * grad_bytes + 8;
    else
        m.optimizer += states;
    if (zero.stage >= 2) m.peak_communication += walk.peak();

    PredictedCommunication& p = prediction.communication;
    for (size_t u = 0; u < layout.size(); ++u) {
        const Communicator& ranks = *layout[u].group;
        const int64_t padded = layout[u].padded, times = zero.stage >= 2 ? walk.reductions(u)
                                                         : zero.every_micro_batch ? A
                                                                                  : 1;
        // Numbers in fewer bits travel with scales, in calls of their own.
        const auto add_narrow = [&](Collective kind, int64_t n, Sent how) {
            p.add(ranks, kind, n * QuantisedTransfer::calls(how),
                  n * QuantisedTransfer::bytes(how, padded, ranks.size()));
        };
        if (const Sent how = sent_among(zero.sums, ranks.size());
            zero.stage >= 2 && how != Sent::plain)
            add_narrow(Collective::all_to_all, times, how);
        else
            p.add(ranks, zero.stage == 0 ? Collective::all_reduce : Collective::reduce_scatter,
                  times, times * padded * grad_bytes);
        const int64_t gathers = zero.stage == 3 ? walk.gathers(u) : zero.stage > 0 ? 1 : 0;
        if (const Sent how = sent_among(zero.gathers, ranks.size());
            zero.stage == 3 && how != Sent::plain)
            add_narrow(Collective::all_gather, gathers, how);
        else if (const int64_t of_all = S > 0 ? std::min<int64_t>(gathers, 1) : gathers;
                 gathers > 0) {
            p.add(ranks, Collective::all_gather, of_all, of_all * padded * value_bytes);
            if (gathers > of_all)
                p.add({"secondary", S}, Collective::all_gather, gathers - of_all,
                      (gathers - of_all) * padded * value_bytes);
        }
        const Range summed = zero.stage == 0 ? layout.whole(u) : layout.shard_of(u, ranks.rank());
        const std::vector<std::string> of_all = layout.replica_groups(u);
        for (const std::string& group : of_all)
            p.add(mesh.group(group), Collective::all_reduce, 1, summed.size() * grad_bytes);
        for (const auto& [parameter, begin, at] : layout.pieces(u, summed))
            for (const std::string& group : FlatLayout::besides(of_all, *parameter))
                p.add(mesh.group(group), Collective::all_reduce, 1, at.size() * grad_bytes);
    }
}

// The number of layers that keep their input only, the first ones.
inline int64_t checkpoints_of(const StepShape& s) {
    return s.model.recompute.count(Recompute::full, s.config.layers);
}
// --offload activations: the bytes of a micro-batch's kept inputs that go to the host and come
// back, for all of these layers but the last.
inline int64_t kept_on_host(const StepShape& s) {
    return std::max<int64_t>(checkpoints_of(s) - 1, 0) * s.micro_batch * s.seq * s.config.hidden *
           dtype_bytes(s.model.dtype);
}

inline LocalSizes local_sizes(const StepShape& shape, const ZeroOptions& zero) {
    LocalSizes sizes = local_sizes(shape);
    sizes.checkpoints_on_host = zero.offload_activations;
    return sizes;
}

// The sums of a step's end. The norm of the shards is summed even over a single rank.
inline void add_norm_and_loss(PredictedCommunication& communication, const Mesh& mesh) {
    communication.add(mesh.norm_group_of_shards(), Collective::all_reduce, 1, 2 * sizeof(double));
    communication.add_scalar_sum(mesh.world());
}

// Predicts one step: the activations and FLOPs of a rank's own micro-batch, which do not depend on
// the stage, and what add_to() adds. `ranks` share a batch.
inline Prediction predict(const FlatLayout& layout, const std::vector<const Unit*>& units,
                          const ZeroOptions& zero, const StepShape& shape, int64_t A,
                          const Mesh& mesh) {
    Prediction prediction;
    add_activations(prediction, local_sizes(shape, zero));
    if (zero.offload_activations) prediction.memory.host += kept_on_host(shape);
    add_flops(prediction, shape, parameters_of(layout));
    add_to(prediction, layout, zero, shape, A, walk_step(layout, units, zero, shape, A), mesh);
    add_norm_and_loss(prediction.communication, mesh);
    return prediction;
}

inline FlatLayout layout_of(const Llama& model, const ZeroOptions& zero, const Mesh& mesh) {
    return {units_of(model), mesh, zero.plain ? Cut::model : zero.cut};
}

// --plain --optimizer muon: this rank's part of the numbers, in which each matrix is whole.
inline Prediction predict_muon(const ParameterList& parameters, const StepShape& shape,
                               const Mesh& mesh) {
    const Communicator& ranks = mesh.data_group();
    const WholeMatrices dealt = deal_matrices(parameters, ranks.size());
    const Range own{ranks.rank() * dealt.part, (ranks.rank() + 1) * dealt.part};
    const int64_t all = dealt.part * ranks.size(), value = dtype_bytes(shape.model.dtype),
                  grad = dtype_bytes(shape.grad_dtype);
    Prediction prediction;
    add_activations(prediction, local_sizes(shape));
    add_flops(prediction, shape, parameters.local_numel());
    prediction.memory += {.parameters = all * value, .gradients = all * grad};
    for (const auto& [parameter, at] : dealt.places) {
        const int64_t held =
            std::min(at + parameter->local_numel(), own.end) - std::max(at, own.begin);
        prediction.memory.optimizer +=
            std::max<int64_t>(held, 0) *
            (optimizer_bytes(shape.model.dtype) - (Muon::updates(*parameter) ? muon_saves : 0));
    }
    prediction.communication.add(ranks, Collective::reduce_scatter, 1, all * grad);
    prediction.communication.add(ranks, Collective::all_gather, 1, all * value);
    add_norm_and_loss(prediction.communication, mesh);
    return prediction;
}

inline Prediction predict(const Llama& model, const ZeroOptions& zero, const StepShape& shape,
                          int64_t A, const Mesh& mesh) {
    if (zero.plain && zero.muon) return predict_muon(model.parameters(), shape, mesh);
    return predict(layout_of(model, zero, mesh), units_of(model), zero, shape, A, mesh);
}

// What a rank holds if other layers of the shape recompute.
inline auto memory_by_shape(const Options& options, const ZeroOptions& zero,
                            const StepShape& shape) {
    const Mesh mesh(Communicator::world(), data_axes(Communicator::world().size(), zero));
    Llama model(shape.config, shape.model);
    sum_over_replicas(model.parameters(), mesh);
    return [=, memory = predict(model, zero, shape, options.grad_accum, mesh).memory](
               const StepShape& changed) mutable {
        memory.peak_activations = peak_activation_bytes(local_sizes(changed, zero));
        return memory;
    };
}

// The first step's bounds: `bounds`, widened if numbers travel in fewer bits, to about twice the
// distance that was measured (MEASURED.md).
inline VerifyBounds bounds_of(const ZeroOptions& zero, VerifyBounds bounds) {
    if (why_not_equal(zero).empty()) return bounds;
    const bool fp8 = zero.gathers == Sent::fp8 || zero.sums == Sent::fp8;
    bounds.gradient = std::max(bounds.gradient, fp8 ? 0.15 : 2e-3);
    if (zero.gathers == Sent::fp8) bounds.first_loss = std::max(bounds.first_loss, 3e-3);
    return bounds;
}

inline std::string what_needs_less(const Options& options, const ZeroOptions& zero) {
    std::string ways = "more ranks";
    if (zero.shard_size > 0) ways = "a larger --shard-size, " + ways;
    if (zero.stage < 3) ways = "--stage 3, " + ways;
    if (options.recompute != Recompute::full) ways += ", --recompute full";
    if (options.micro_batch > 1) ways += ", a smaller --micro-batch";
    return "to need less memory, use any of: " + ways;
}

inline std::string describe(const ZeroOptions& zero, int ranks) {
    const char* sharded[] = {"nothing", "", " and gradients", ", gradients and parameters"};
    std::string more;
    const auto add = [&](bool given, const char* words) {
        if (given) more += (more.empty() ? "\n          " : "; ") + std::string(words);
    };
    add(zero.plain, "all at once, and nothing overlaps");
    add(zero.plain && zero.muon, "each matrix is whole on one rank");
    const int sharing = zero.shard_size > 0 ? zero.shard_size : ranks;
    const std::string copies =
        fmt::format("{} of them hold copies", format_count(ranks / sharing, "group"));
    add(sharing < ranks, copies.c_str());
    const std::string later =
        fmt::format("gathers but a step's first among {} ranks", zero.secondary_shard);
    add(zero.secondary_shard > 0, later.c_str());
    add(zero.keep_gathered, "parameters are gathered once a step");
    add(zero.gathers == Sent::fp8, "parameters are gathered in fp8");
    add(zero.sums != Sent::plain,
        zero.sums == Sent::fp8 ? "gradients travel in fp8" : "gradients travel in bf16");
    add(zero.cut == Cut::model, "the model is one unit");
    add(zero.offload_activations, "the layers' inputs are on the host");
    return fmt::format("stage {}: {}{}{} sharded over {}{}", zero.stage,
                       zero.stage > 0 ? "optimizer states" : "",
                       zero.offload ? " (on the host)" : "", sharded[zero.stage],
                       format_count(sharing, "rank"), more);
}

// --estimate: nothing is allocated.
inline void print_estimate(const Options& options, const ZeroOptions& zero_options,
                           const StepShape& shape) {
    const Communicator& ranks = Communicator::world();
    const Mesh mesh(ranks, data_axes(ranks.size(), zero_options));
    Llama model(shape.config, shape.model);
    sum_over_replicas(model.parameters(), mesh);
    Report report("02_zero", options, shape, 0);
    report.configuration(sequences_of_step(options, ranks.size()), "");
    report.technique("ZeRO", describe(zero_options, ranks.size()), {{"dp", ranks.size()}});
    report.estimate(predict(model, zero_options, shape, options.grad_accum, mesh), 1,
                    [&] { return what_needs_less(options, zero_options); });
    report.finish();
}

}  // namespace ultrascale::zero
