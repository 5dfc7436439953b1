// With --stage 3 the parameters are sharded too. A unit's whole parameters exist only around its
// forward and its backward: gathered just before, freed just after (PyTorch's FSDP: Zhao et al.
// 2023, https://arxiv.org/abs/2304.11277). Gradients are handled as in stage 2. That saves (n-1)/n
// of the parameters, and sends half as much again; with the gathers one unit ahead, a step takes as
// long as in stage 2 (355 ms, and there 357, on four H200s: MEASURED.md).
//
// A unit is the embedding, one layer, or the final norm with the head. Its parameters lie in one
// flat tensor, of which rank r keeps the r-th part, the shard. A pass is a unit's forward or its
// backward; the model calls before() and after() around each.
//
//     gather(u)    starts an all-gather: every rank sends its shard of unit u, and has the whole
//                  unit when all have arrived. It runs on the stream for communication, while the
//                  compute stream goes on. Where the unit is already there, it does nothing
//     arrive(u)    makes compute wait for it. If it was started a pass ago, there is little or
//                  nothing left to wait for: that is the prefetch
//     release(u)   drops the only reference to the whole unit, which frees it. The shard stays
//
// Here is a forward with --prefetch 1, the default. [L2] is a whole unit, (L2) one that arrives:
//
//                                                                                held
//     before(L1)   gather(L1): was started a pass ago; gather(L2); arrive(L1)    [L1](L2)
//     forward L1                           L2 arrives meanwhile                  [L1](L2)
//     after(L1)    release(L1): the next pass does not read it                       [L2]
//     before(L2)   gather(L3); arrive(L2)                                            [L2](L3)
//     forward L2                           L3 arrives meanwhile                      [L2](L3)
//     after(L2)    release(L2)                                                           [L3]
//
// So never more than two units are whole, however deep the model is: L1 is freed before L3 gets its
// memory, which is often the one that L1 had. With --prefetch N they are N + 1.
//
// In backward the units come in the opposite order, and a unit also needs its whole gradient. Its
// buffer exists from before() until the reduce-scatter that after() starts has been waited for,
// which after() of the next unit does; the sum's shard stays (5_gradient_buffers.h):
//
//     compute           backward L8           backward L7           backward L6
//     communication     gather L7             gather L6             gather L5
//                       reduce-scatter head   reduce-scatter L8     reduce-scatter L7
//     parameters held   [L8](L7)              [L7](L6)              [L6](L5)
//     gradients held    [head][L8]            [L8][L7]              [L7][L6]
//
// A micro-batch has 2 U passes for U units: the forwards of units 0 .. U-1, then the backwards of
// units U-1 .. 0. Two gathers are saved. The head's backward follows its forward directly, so the
// head keeps its parameters in between; and the embedding's backward reads none. A tied head uses
// the embedding's matrix, which is therefore gathered once more.
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

// Returns the flat tensors that hold what pass number `at` (0 .. 2 U - 1) of a micro-batch reads,
// as indices of `layout`. A unit reads its own; a tied head reads the embedding's, too.
inline std::vector<size_t> flats_needed(const FlatLayout& layout,
                                        const std::vector<const Unit*>& units, size_t at,
                                        bool training = true) {
    const size_t U = units.size();
    if (at < U) return layout.flats_of(*units[at]);
    if (at >= 2 * U || !training) return {};
    const Unit& unit = *units[2 * U - 1 - at];
    return unit.reads_in_backward ? layout.flats_of(unit) : std::vector<size_t>{};
}
// Returns the same for the passes first .. last, with each flat tensor listed once.
inline std::vector<size_t> flats_needed(const FlatLayout& layout,
                                        const std::vector<const Unit*>& units, size_t first,
                                        size_t last, bool training) {
    std::vector<size_t> all;
    for (size_t at = first; at <= last; ++at)
        for (size_t u : flats_needed(layout, units, at, training))
            if (std::ranges::find(all, u) == all.end()) all.push_back(u);
    return all;
}

// Returns for how many passes ahead gathered parameters stay: N with --prefetch N, but at least
// one; with --keep-gathered on, until the micro-batch's last pass.
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
    // A pipeline may take a backward apart, into Pass::backward_input and Pass::backward_weight;
    // the latter reads no parameters.
    void before(const Unit& unit, Pass pass, const Context& context) override {
        if (pass != Pass::backward_weight) {
            // exercise 02.2 begin: gather this pass' and those ahead; wait for this one's
            const size_t now = pass_of(unit, pass);
            for (size_t u : needed(now, now + size_t(zero_.prefetch), context))
                gather(u);  // the first of them is this pass's own
            for (size_t u : needed(now, now, context)) {
                arrive(u);
                layout_.bind(u, whole_[u], &Parameter::value);  // views for each parameter
            }
            // exercise 02.2 end
        }
        buffers_.make_room(unit, pass);  // before a backward: the unit's whole gradient
    }
    void after(const Unit& unit, Pass pass, const Context& context) override {
        Zero2::after(unit, pass, context);  // after a backward: starts the reduce-scatter
        if (pass == Pass::backward_weight) return;
        if (zero_.keep_gathered && !last_) return;  // not the step's last micro-batch: all stay
        const size_t now = pass_of(unit, pass);
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
        const TraceName name = name_of(u);  // what is called in its lifetime, the timeline names so
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
    // Symmetric memory, where there is any, lets other GPUs write their shards into it.
    void allocate(size_t u) {
        whole_[u] = Tensor::empty({layout_[u].padded}, options_.dtype, Memory::communication,
                                  ranks_of(u).symmetric_memory());
    }
    // Returns the number of a pass within its micro-batch, 0 .. 2 U - 1.
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
