// --stage 1: the optimizer's states are sharded. A rank needs only its own shards' gradients to
// update its own shards' parameters:
// reduce-scatter instead of all-reduce. Then everybody collects the updated parameters: all-gather.
// Together as many bytes as an all-reduce, which is the two of them one after the other.
//
//     gradients, unit by unit during backward    [ r0 | r1 | r2 | r3 ]  reduce-scatter ->  rank r holds the sum of its quarter
//     AdamW on the quarter (states: a quarter)
//     parameters, unit by unit                   [ r0 | r1 | r2 | r3 ]  <- all-gather      everybody holds all of it again
//
// The all-gather hides in one of two places (--gather-overlap):
//     optimizer   a unit's all-gather runs while the next unit is updated; the step ends when the
//                 last one has arrived
//     forward     and it may still run in the next step: a unit waits for its parameters just
//                 before its forward
#pragma once

#include "offload.h"
#include "zero.h"

namespace ultrascale {

class Zero1 : public Zero {
public:
    using Zero::Zero;

    TrainingState start() override {
        allocate_values();
        allocate_gradients();
        if (zero_.offload) offload_.emplace(layout_, value_shards_, grad_shards_);
        for (size_t u = 0; u < layout_.size(); ++u) {
            const Tensor values = offload_ ? offload_->values(u) : value_shards_[u],
                         grads = offload_ ? offload_->grads(u) : grad_shards_[u];
            optimizers_.emplace_back(layout_.shard_items(u, ranks_of(u).rank(), values, grads),
                                     options_.optimizer);
        }
        gathers_.resize(layout_.size());
        return resume();
    }

    void gradient_complete(Parameter& parameter, const Context&) override {
        if (!unit_complete(parameter)) return;
        const size_t u = layout_.flat_of(parameter);
        const TraceName name = name_of(u);
        const Tensor unit = of_unit(grads_, u);
        reductions_.push_back(ranks_of(u).reduce_scatter(my_shard(u, unit), unit, Reduce::sum,
                                                         communication_stream()));
    }
    void end_micro_batch() override {
        if (last_ || zero_.every_micro_batch) parameters_.check_complete();
        for (Work& work : reductions_) work.wait();
        reductions_.clear();
        if (!zero_.every_micro_batch) return;
        for (size_t u = 0; u < layout_.size(); ++u) {
            const TraceName name = name_of(u);
            const Tensor reduced = my_shard(u, of_unit(grads_, u));
            first_ ? ops::copy(grad_shards_[u], reduced) : ops::add(grad_shards_[u], reduced);
        }
        parameters_.begin_gradients();
    }
    Tensor squared_norm() override {
        sum_besides(grad_shards_);
        return sum_squares(grad_shards_);
    }

    void update(double lr, const Tensor& squared_norm) override {
        update_shards(lr, squared_norm, [&](size_t u) {
            const TraceName name = name_of(u);
            gathers_[u] = ranks_of(u).all_gather(of_unit(values_, u), value_shards_[u],
                                                 communication_stream());
        });
        if (zero_.gather_overlap == GatherOverlap::optimizer) finish();
    }
    void before(const Unit& unit, Pass pass, const Context&) override {
        if (pass != Pass::forward) return;
        for (size_t u : layout_.flats_of(unit)) gathers_[u].wait();
    }
    void finish() override {
        for (Work& gather : gathers_) gather.wait();
    }

    std::vector<TensorPart> gradients() override { return shard_parts(grad_shards_); }
    void print_offload(Report& report) override {
        if (offload_) offload_->print_times(report);
    }

protected:
    // Whole values on every rank; the shard that this rank updates is a part of them.
    virtual void allocate_values() {
        values_ = allocate_flat(options_.dtype, Memory::parameter, &Parameter::value);
        load_or_initialize(options_, parameters_);
        for (size_t u = 0; u < layout_.size(); ++u)
            value_shards_.push_back(my_shard(u, of_unit(values_, u)));
    }
    // Whole gradients; the reduce-scatter leaves this rank's shard of the sum in its place.
    virtual void allocate_gradients() {
        grads_ = allocate_flat(options_.grad_dtype(), Memory::gradient, &Parameter::grad);
        for (size_t u = 0; u < layout_.size(); ++u) {
            const Tensor shard = my_shard(u, of_unit(grads_, u));
            grad_shards_.push_back(
                zero_.every_micro_batch
                    ? Tensor::zeros(shard.shape(), shard.dtype(), Memory::gradient)
                    : shard);
        }
    }
    // Updates this rank's shards, one unit after the other, here or on the host; calls ready(unit)
    // after each.
    void update_shards(double lr, const Tensor& squared_norm,
                       const std::function<void(size_t)>& ready) {
        if (offload_) return offload_->run(optimizers_, lr, squared_norm, ready);
        for (size_t u = 0; u < layout_.size(); ++u) {
            const TraceName name = name_of(u);
            optimizers_[u].step(lr, squared_norm);
            ready(u);
        }
    }
    std::vector<TensorPart> shard_parts(const std::vector<Tensor>& shards) const {
        std::vector<TensorPart> parts;
        for (size_t u = 0; u < layout_.size(); ++u)
            for (const AdamW::Item& item :
                 layout_.shard_items(u, ranks_of(u).rank(), shards[u], shards[u]))
                parts.emplace_back(*item.parameter, item.value, item.begin);
        return parts;
    }

    std::vector<Tensor> value_shards_, grad_shards_;  // of each unit: (shard)
    std::vector<Work> gathers_;                       // of each unit's parameters

private:
    Tensor values_, grads_;  // (all units, padded)
    std::vector<Work> reductions_;
    std::optional<OffloadedUpdate> offload_;
};

}  // namespace ultrascale
