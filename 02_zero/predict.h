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

// The peak, in bytes, of the whole parameters and gradients that stages 2 and 3 hold around a
// unit's passes (Memory::communication).
inline int64_t predicted_transient(const FlatLayout& layout, const std::vector<const Unit*>& units,
                                   const ZeroOptions& zero, const StepShape& shape,
                                   int64_t micro_batches) {
    const size_t U = units.size();
    const int64_t value_bytes = dtype_bytes(shape.model.dtype),
                  grad_bytes = dtype_bytes(shape.grad_dtype);
    int64_t most = 0;
    for (size_t step = 0; step < 2 * U; ++step) {
        int64_t bytes = 0;
        if (zero.stage == 3)  // this step's and the prefetched units' parameters
            for (size_t u : flats_needed(layout, units, step, step + size_t(zero.prefetch), true))
                bytes += layout[u].padded * value_bytes;
        // This unit's gradients, and the previous unit's, which are being reduced.
        if (zero.stage >= 2 && step >= U) {
            const size_t u = 2 * U - 1 - step;
            std::vector<size_t> held = layout.flats_of(*units[u]), under_way = {u};
            if (u + 1 < U) held.push_back(u + 1), under_way.push_back(u + 1);
            if (u > 0 && layout.flats_of(*units.back()).size() > 1 &&
                std::ranges::find(held, 0) == held.end())
                held.push_back(0);  // tied
            for (size_t h : held) bytes += layout[h].padded * grad_bytes;
            if (micro_batches > 1)  // their sums, before they are added
                for (size_t s : under_way) bytes += layout[s].shard * grad_bytes;
        }
        most = std::max(most, bytes);
    }
    return most;
}

// Adds what sharding determines: this rank's parameters, gradients and optimizer states, and the
// communication of a step with A micro-batches. It is exact to the byte: it includes the padding of
// flat_layout.h, for which there are no optimizer states. In units of (n-1)/n Psi (Psi: the bytes
// of all parameters) stages 0 to 3 send 2, 2, A + 1, and 3 A minus what stage 3 need not gather
// twice.
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
    if (zero.stage == 3) {  // what a pass needs or prefetches, unless the pass before it kept it
        const size_t ahead = size_t(zero.prefetch), kept_ahead = std::max<size_t>(1, ahead);
        std::vector<size_t> held;
        for (size_t step = 0; step < 2 * layout.size(); ++step) {
            for (size_t u : flats_needed(layout, units, step, step + ahead, true))
                if (std::ranges::find(held, u) == held.end()) {
                    held.push_back(u);
                    p.add(*layout[u].group, Collective::all_gather, A,
                          A * layout[u].padded * value_bytes);
                }
            const std::vector<size_t> kept =
                flats_needed(layout, units, step + 1, step + kept_ahead, true);
            std::erase_if(held, [&](size_t u) { return std::ranges::find(kept, u) == kept.end(); });
        }
    }
}

// The prediction for one step: activations and FLOPs of a rank's own micro-batch, which do not
// depend on the stage, and what add_to() adds. `ranks` share a batch.
inline Prediction predict(const FlatLayout& layout, const std::vector<const Unit*>& units,
                          const ZeroOptions& zero, const StepShape& shape, int64_t A,
                          const Group& ranks) {
    Prediction prediction;
    add_activations(prediction, local_sizes(shape));
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
    return fmt::format(
        "stage {}: {}{}{} sharded over {}", zero.stage, zero.stage > 0 ? "optimizer states" : "",
        zero.offload ? " (on the host)" : "", sharded[zero.stage], format_count(ranks, "rank"));
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
