// What a stage holds and communicates, by formula: from the layout alone, without running anything.
#pragma once

#include "estimate.h"
#include "report.h"
#include "zero3.h"

namespace ultrascale {

// The most bytes of whole parameters and gradients that stages 2 and 3 gather around a unit's passes (Memory::communication).
inline int64_t predicted_transient(const FlatLayout& layout, const std::vector<Unit>& units, const ZeroOptions& zero,
                                   const StepShape& shape, int64_t micro_batches) {
    const size_t U = units.size();
    const int64_t value_bytes = dtype_bytes(shape.model.dtype), grad_bytes = dtype_bytes(shape.grad_dtype);
    int64_t most = 0;
    for (size_t step = 0; step < 2 * U; ++step) {
        int64_t bytes = 0;
        if (zero.stage == 3)  // this step's and the prefetched units' parameters
            for (size_t u : units_needed(layout, units, step, step + size_t(zero.prefetch), true)) bytes += layout[u].padded * value_bytes;
        if (zero.stage >= 2 && step >= U) {  // this unit's gradients, and the former one's, which are under way
            const size_t u = 2 * U - 1 - step;
            std::vector<size_t> held = layout.flats_of(units[u]), under_way = {u};
            if (u + 1 < U) held.push_back(u + 1), under_way.push_back(u + 1);
            if (u > 0 && layout.flats_of(units.back()).size() > 1 && std::ranges::find(held, 0) == held.end()) held.push_back(0);  // tied
            for (size_t h : held) bytes += layout[h].padded * grad_bytes;
            if (micro_batches > 1)  // their sums, before they are added
                for (size_t s : under_way) bytes += layout[s].shard * grad_bytes;
        }
        most = std::max(most, bytes);
    }
    return most;
}

// Per rank. Parameters, gradients and states to the byte: with the padding of flat_layout.h; states of real elements only.
inline MemoryEstimate predict_memory(const FlatLayout& layout, const std::vector<Unit>& units, const ZeroOptions& zero,
                                     const StepShape& shape, int64_t micro_batches, int rank) {
    MemoryEstimate m = estimate_memory(shape);  // activations are a rank's own micro-batch's, whatever the stage
    const int64_t whole = layout.padded();
    int64_t shard = 0, largest = 0, owned = 0;  // elements of this rank's shards; of the largest one; of them parameters
    for (size_t u = 0; u < layout.size(); ++u) {
        shard += layout[u].shard;
        largest = std::max(largest, layout[u].shard);
        owned += std::clamp<int64_t>(layout[u].numel - rank * layout[u].shard, 0, layout[u].shard);
    }
    const int64_t value_bytes = dtype_bytes(shape.model.dtype), grad_bytes = dtype_bytes(shape.grad_dtype);
    m.parameters = (zero.stage == 3 ? shard : whole) * value_bytes;
    m.gradients = (zero.stage >= 2 ? shard : whole) * grad_bytes;
    if (zero.every_micro_batch && zero.stage < 2) m.gradients += (zero.stage == 1 ? shard : whole) * grad_bytes;  // sums beside them
    if (zero.stage >= 1) m.optimizer = owned * optimizer_bytes(shape.model.dtype);
    if (zero.offload) {  // offload.h: the states, the weights, two buffers for gradients and the norm
        m.host = m.optimizer + shard * value_bytes + 2 * largest * grad_bytes + 8;
        m.optimizer = 0;
    }
    m.peak_communication = predicted_transient(layout, units, zero, shape, micro_batches);
    return m;
}

// Of one step with A micro-batches on so many ranks. What a rank sends, in units of (n-1)/n Psi, Psi the bytes of all parameters: 2, 2,
// A + 1, and 3 A less what stage 3 need not gather twice.
inline PredictedCommunication predict_communication(const FlatLayout& layout, const std::vector<Unit>& units, const ZeroOptions& zero,
                                                    const StepShape& shape, int64_t A, int ranks) {
    const auto U = int64_t(layout.size());
    const int64_t value_bytes = layout.padded() * dtype_bytes(shape.model.dtype),
                  grad_bytes = layout.padded() * dtype_bytes(shape.grad_dtype);
    const int64_t times = zero.stage >= 2 || zero.every_micro_batch ? A : 1;
    PredictedCommunication p;
    p.add(zero.stage == 0 ? Collective::all_reduce : Collective::reduce_scatter, times * U, times * grad_bytes, ranks);
    if (zero.stage == 1 || zero.stage == 2) p.add(Collective::all_gather, U, value_bytes, ranks);
    if (zero.stage == 3) {  // what a step needs or prefetches and the steps before it did not keep
        const size_t ahead = size_t(zero.prefetch), kept_ahead = std::max<size_t>(1, ahead);
        std::vector<size_t> held;
        for (size_t step = 0; step < 2 * size_t(U); ++step) {
            for (size_t u : units_needed(layout, units, step, step + ahead, true))
                if (std::ranges::find(held, u) == held.end()) {
                    held.push_back(u);
                    p.add(Collective::all_gather, A, A * layout[u].padded * dtype_bytes(shape.model.dtype), ranks);
                }
            const std::vector<size_t> kept = units_needed(layout, units, step + 1, step + kept_ahead, true);
            std::erase_if(held, [&](size_t u) { return std::ranges::find(kept, u) == kept.end(); });
        }
    }
    p.add(Collective::all_reduce, 2, 16, ranks);  // the gradient's norm and the loss
    return p;
}

}  // namespace ultrascale
