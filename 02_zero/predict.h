// What a stage holds and communicates, by formula: computed from the layout, without running
// anything.
#pragma once

#include "report/estimate.h"
#include "report/report.h"
#include "stages.h"
#include "train/run.h"

namespace ultrascale {

// Elements of the whole model, without padding.
inline int64_t parameters_of(const FlatLayout& layout) {
    int64_t numel = 0;
    for (size_t u = 0; u < layout.size(); ++u) numel += layout[u].numel;
    return numel;
}

// The micro-batches of a step that may differ: the first one, those in between, the last one.
struct MicroBatches {
    bool first, last;
    int64_t times;
};
inline std::vector<MicroBatches> kinds_of_micro_batches(int64_t A) {
    if (A == 1) return {{true, true, 1}};
    std::vector<MicroBatches> kinds = {{true, false, 1}, {false, false, A - 2}, {false, true, 1}};
    if (A == 2) kinds.erase(kinds.begin() + 1);
    return kinds;
}

// Calls visit(pass, gathered, held) for each pass of a micro-batch (zero3.h numbers them): the flat
// tensors that stage 3 gathers for it, and all whose parameters are whole during it. `held`: those
// that are whole before the micro-batch; afterwards, after it. In other stages there are none.
template <class Visit>
void for_each_pass(const FlatLayout& layout, const std::vector<const Unit*>& units,
                   const ZeroOptions& zero, bool last, std::vector<size_t>& held, Visit visit) {
    for (size_t pass = 0; pass < 2 * units.size(); ++pass) {
        std::vector<size_t> gathered;
        if (zero.stage == 3)
            for (size_t u : flats_needed(layout, units, pass, pass + size_t(zero.prefetch), true))
                if (std::ranges::find(held, u) == held.end())
                    held.push_back(u), gathered.push_back(u);
        visit(pass, gathered, held);
        if (zero.keep_gathered && !last) continue;
        const std::vector<size_t> kept = flats_needed(
            layout, units, pass + 1, pass + passes_kept_ahead(zero, units.size()), true);
        std::erase_if(held, [&](size_t u) { return std::ranges::find(kept, u) == kept.end(); });
    }
}

// The peak, in bytes, of the whole parameters and gradients that stages 2 and 3 hold around a
// unit's passes (Memory::communication).
inline int64_t predicted_transient(const FlatLayout& layout, const std::vector<const Unit*>& units,
                                   const ZeroOptions& zero, const StepShape& shape, int64_t A) {
    const size_t U = units.size();
    const int64_t value_bytes = dtype_bytes(shape.model.dtype),
                  grad_bytes = dtype_bytes(shape.grad_dtype);
    // The first and the last unit that has parameters in a flat tensor. Its gradients' buffer
    // exists from the last one's backward to the first one's, and in the next one it is reduced.
    std::vector<size_t> first_unit(layout.size(), U), last_unit(layout.size(), 0);
    for (size_t u = 0; u < U; ++u)
        for (size_t flat : layout.flats_of(*units[u]))
            first_unit[flat] = std::min(first_unit[flat], u), last_unit[flat] = u;
    int64_t most = 0;
    std::vector<size_t> held;
    for (const MicroBatches& kind : kinds_of_micro_batches(A))
        for_each_pass(layout, units, zero, kind.last, held, [&](size_t pass, auto&, auto& whole) {
            int64_t bytes = 0;
            for (size_t flat : whole) bytes += layout[flat].padded * value_bytes;
            for (size_t flat = 0; zero.stage >= 2 && pass >= U && flat < layout.size(); ++flat) {
                const size_t u = 2 * U - 1 - pass;
                const bool open = first_unit[flat] <= u && u <= last_unit[flat],
                           under_way = first_unit[flat] == u + 1;
                if (open || under_way) bytes += layout[flat].padded * grad_bytes;
                if (!kind.first && (first_unit[flat] == u || under_way))
                    bytes += layout[flat].shard * grad_bytes;  // a sum before it is added
            }
            most = std::max(most, bytes);
        });
    return most;
}

// Adds what sharding determines: this rank's parameters, gradients and optimizer states, and the
// communication of a step with A micro-batches. It is exact to the byte: it includes the padding of
// flat_layout.h, for which there are no optimizer states. In units of (n-1)/n Psi (Psi: the bytes
// of all parameters) stages 0 to 3 send 2, 2, A + 1, and 3 A minus what stage 3 need not gather
// twice; with --keep-gathered on it sends A + 1 as well, with --cut model 2 A.
inline void add_to(Prediction& prediction, const FlatLayout& layout,
                   const std::vector<const Unit*>& units, const ZeroOptions& zero,
                   const StepShape& shape, int64_t A) {
    MemoryEstimate& m = prediction.memory;
    const int64_t whole = layout.padded();
    // Elements of this rank's shards; of the largest shard; of the shards without padding.
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
    m.gradients += (zero.stage >= 2 ? shard : whole) * grad_bytes;
    if (zero.every_micro_batch && zero.stage < 2)
        m.gradients += (zero.stage == 1 ? shard : whole) * grad_bytes;  // the separate sums
    if (zero.offload)  // offload.h: the states, the weights, two buffers for gradients and the norm
        m.host += states + shard * value_bytes + 2 * largest * grad_bytes + 8;
    else
        m.optimizer += states;
    m.peak_communication += predicted_transient(layout, units, zero, shape, A);

    PredictedCommunication& p = prediction.communication;
    const int64_t times = zero.stage >= 2 || zero.every_micro_batch ? A : 1;
    for (size_t u = 0; u < layout.size(); ++u) {
        const Communicator& ranks = *layout[u].group;
        const int64_t padded = layout[u].padded;
        p.add(ranks, zero.stage == 0 ? Collective::all_reduce : Collective::reduce_scatter, times,
              times * padded * grad_bytes);
        if (zero.stage == 1 || zero.stage == 2)
            p.add(ranks, Collective::all_gather, 1, padded * value_bytes);
    }
    std::vector<size_t> held;
    for (const MicroBatches& kind : kinds_of_micro_batches(A))
        for_each_pass(layout, units, zero, kind.last, held, [&](size_t, auto& gathered, auto&) {
            for (size_t u : gathered)
                p.add(*layout[u].group, Collective::all_gather, kind.times,
                      kind.times * layout[u].padded * value_bytes);
        });
}

// --offload activations: the bytes of a micro-batch's kept inputs that go to the host and come
// back, those of all layers but the last.
inline int64_t kept_on_host(const StepShape& s) {
    return (s.config.layers - 1) * s.micro_batch * s.seq * s.config.hidden *
           dtype_bytes(s.model.dtype);
}

// The prediction for one step: activations and FLOPs of a rank's own micro-batch, which do not
// depend on the stage, and what add_to() adds. `ranks` share a batch.
inline Prediction predict(const FlatLayout& layout, const std::vector<const Unit*>& units,
                          const ZeroOptions& zero, const StepShape& shape, int64_t A,
                          const Group& ranks) {
    Prediction prediction;
    LocalSizes sizes = local_sizes(shape);
    sizes.checkpoints_on_host = zero.offload_activations;
    add_activations(prediction, sizes);
    if (zero.offload_activations) prediction.memory.host += kept_on_host(shape);
    add_flops(prediction, shape, parameters_of(layout));
    add_to(prediction, layout, units, zero, shape, A);
    // The gradient's norm and the loss.
    prediction.communication.add(ranks, Collective::all_reduce, 2, 16);
    return prediction;
}

inline std::string what_needs_less(const Options& options, const ZeroOptions& zero) {
    std::string ways = "more ranks";
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
    add(zero.keep_gathered, "parameters are gathered once a step");
    add(zero.cut == Cut::model, "the model is one unit");
    add(zero.offload_activations, "the layers' inputs are on the host");
    return fmt::format("stage {}: {}{}{} sharded over {}{}", zero.stage,
                       zero.stage > 0 ? "optimizer states" : "",
                       zero.offload ? " (on the host)" : "", sharded[zero.stage],
                       format_count(ranks, "rank"), more);
}

// --estimate: nothing is allocated, since a stage allocates parameters only in start().
inline void print_estimate(const Options& options, const ZeroOptions& zero_options,
                           const StepShape& shape) {
    const Communicator& ranks = Communicator::world();
    const Mesh mesh(ranks, {{"dp", ranks.size()}});
    Llama model(shape.config, shape.model);
    const std::unique_ptr<Zero> zero = make_zero(model, mesh, options, zero_options);
    Report report("02_zero", options, shape, 0);
    report.configuration(sequences_of_step(options, ranks.size()), "");
    report.technique("ZeRO", describe(zero_options, ranks.size()), {{"dp", ranks.size()}});
    report.estimate(
        predict(zero->layout(), zero->units(), zero_options, shape, options.grad_accum, ranks), 1,
        what_needs_less(options, zero_options));
    report.finish();
}

}  // namespace ultrascale
