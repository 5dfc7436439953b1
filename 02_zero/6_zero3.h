// --stage 3: the parameters are sharded too. A unit's whole parameters exist only around its
// forward and its backward: gathered just before, freed just after (PyTorch's FSDP: Zhao et al.
// 2023, https://arxiv.org/abs/2304.11277). Gradients are handled as in stage 2. That saves (n-1)/n
// of the parameters, and sends half as much again; with the gathers one unit ahead, a step takes as
// long as before (355 ms after 357, four H200s: MEASURED.md).
//
//     compute          forward L1   forward L2   forward L3  ...  head: forward, backward
//     communication    gather L2    gather L3    gather L4        gather L8
//     parameters held  [L1][L2]     [L2][L3]     [L3][L4]         [head][L8]
//
//     compute          ...   backward L8           backward L7           backward L6
//     communication          gather L7             gather L6             gather L5
//                            reduce-scatter head   reduce-scatter L8     reduce-scatter L7
//     parameters held        [L8][L7]              [L7][L6]              [L6][L5]
//                                                             and 1/n of everything at all times
//
// before() a pass gathers what it and the next pass read, and waits for its own; after() it frees
// what the next pass does not read. In the terms of this file:
//
//     gather(u)    starts an all-gather: every rank sends its shard of unit u, and has the whole
//                  unit when all have arrived. It runs on the stream for communication, while the
//                  compute stream goes on
//     arrive(u)    compute waits for it. If it was gathered a pass ago, there is nothing left to
//                  wait for: that is the prefetch
//     release(u)   drops the only reference to the whole unit, which frees it. The shard stays
//
// --prefetch N gathers N units ahead, so N + 1 units exist at a time. A micro-batch has 2 U passes
// for U units: forward of unit 0 .. U-1, then backward of unit U-1 .. 0. flats_needed() says which
// parameters each pass reads. Two gathers are saved: the head's backward follows its forward
// directly, so the head keeps its parameters; and the embedding's backward reads none. A tied head
// uses the embedding's matrix, which is therefore gathered once more.
//
// Two ways to gather less, at the price of the memory that this stage saves:
//     --keep-gathered on   what has been gathered stays until its last pass of the step: one
//                          gather a step, not two a micro-batch; but all parameters are whole
//     --cut model          the whole model is one unit: one gather and one reduction a
//                          micro-batch, under which nothing computes; parameters and gradients
//                          are whole
#pragma once

#include <algorithm>

#include "5_zero2.h"

namespace ultrascale::zero {

// The flat tensors (places in `layout`) that hold what pass `at` of a micro-batch reads. Passes are
// numbered 0 .. 2 U - 1: the forwards of units 0 .. U-1, then the backwards of units U-1 .. 0.
inline std::vector<size_t> flats_needed(const FlatLayout& layout,
                                        const std::vector<const Unit*>& units, size_t at,
                                        bool training = true) {
    const size_t U = units.size();
    if (at < U) return layout.flats_of(*units[at]);
    if (at >= 2 * U || !training) return {};
    const Unit& unit = *units[2 * U - 1 - at];
    return unit.reads_in_backward ? layout.flats_of(unit) : std::vector<size_t>{};
}
// The same for the passes first .. last; each flat tensor is listed once.
inline std::vector<size_t> flats_needed(const FlatLayout& layout,
                                        const std::vector<const Unit*>& units, size_t first,
                                        size_t last, bool training) {
    std::vector<size_t> all;
    for (size_t at = first; at <= last; ++at)
        for (size_t u : flats_needed(layout, units, at, training))
            if (std::ranges::find(all, u) == all.end()) all.push_back(u);
    return all;
}

// For how many passes ahead gathered parameters stay: N with --prefetch N, at least one; with
// --keep-gathered on until the micro-batch's last pass.
inline size_t passes_kept_ahead(const ZeroOptions& zero, size_t units) {
    return zero.keep_gathered ? 2 * units : std::max<size_t>(1, size_t(zero.prefetch));
}

class Zero3 : public Zero2 {
public:
    using Zero2::Zero2;

    TrainingState start() override {
        whole_.resize(layout_.size());
        for (size_t u = 0; u < layout_.size(); ++u) {
            value_shards_.push_back(
                Tensor::zeros({layout_[u].shard}, options_.dtype, Memory::parameter));
            load_or_draw(options_, layout_.shard_items(u, ranks_of(u).rank(), value_shards_[u],
                                                       value_shards_[u]));
        }
        grad_shards_ = buffers_.allocate_shards(layout_, options_.grad_dtype());
        return start_optimizers();
    }
    void before(const Unit& unit, Pass pass, const Context& context) override {
        if (pass != Pass::backward_weight) {  // that pass reads no parameters
            // exercise 02.2 begin: gather this pass' and those ahead; wait for this one's
            const size_t now = pass_of(unit, pass);
            for (size_t u : needed(now, now + size_t(zero_.prefetch), context))
                gather(u);  // the first of them is this pass's own
            for (size_t u : needed(now, now, context)) {
                arrive(u);
                layout_.bind(u, whole_[u], &Parameter::value);
            }
            // exercise 02.2 end
        }
        buffers_.make_room(unit, pass);
    }
    void after(const Unit& unit, Pass pass, const Context& context) override {
        Zero2::after(unit, pass, context);
        if (pass == Pass::backward_weight) return;
        if (zero_.keep_gathered && !last_) return;
        const size_t now = pass_of(unit, pass);
        // Frees the whole parameters that none of the coming passes needs.
        // exercise 02.3 begin: free what none of the coming passes needs
        const std::vector<size_t> kept =
            needed(now + 1, now + passes_kept_ahead(zero_, units_.size()), context);
        for (size_t u = 0; u < layout_.size(); ++u)
            if (std::ranges::find(kept, u) == kept.end()) release(u);
        // exercise 02.3 end
    }
    void update(double lr, const Tensor& squared_norm) override {
        update_shards(lr, squared_norm, [](size_t) {});  // the next forward gathers what it needs
    }

    std::vector<TensorPart> values() override { return shard_parts(value_shards_); }

protected:
    void wait_for_gradients() override {
        Zero2::wait_for_gradients();
        // The update will change them. (Some are left if passes came in another order: a pipeline.)
        for (size_t u = 0; last_ && u < layout_.size(); ++u) release(u);
    }

    // Starts to gather a flat tensor's parameters, unless they are there or on their way.
    virtual void gather(size_t u) {
        if (whole_[u]) return;
        const TraceName name = name_of(u);
        allocate(u);
        gathers_[u] = ranks_of(u).all_gather(whole_[u], value_shards_[u], communication_stream());
    }
    virtual void arrive(size_t u) { gathers_[u].wait(); }
    virtual void release(size_t u) {
        if (!whole_[u]) return;
        gathers_[u].wait();  // it holds the tensor if no pass came that reads it (a pipeline)
        layout_.bind(u, {}, &Parameter::value);
        whole_[u] = {};  // drops the last reference to the storage
    }
    void allocate(size_t u) {
        whole_[u] = Tensor::empty({layout_[u].padded}, options_.dtype, Memory::communication,
                                  ranks_of(u).symmetric_memory());
    }
    // The number of a pass within its micro-batch, and what passes need.
    size_t pass_of(const Unit& unit, Pass pass) const {
        const auto index = size_t(std::ranges::find(units_, &unit) - units_.begin());
        return pass == Pass::forward ? index : 2 * units_.size() - 1 - index;
    }
    std::vector<size_t> needed(size_t first, size_t last, const Context& context) const {
        return flats_needed(layout_, units_, first, last, context.training);
    }

    std::vector<Tensor> whole_;  // of each unit in use: its whole parameters (padded)
};

}  // namespace ultrascale::zero
