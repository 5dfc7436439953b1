// With --stage 1 the optimizer's states are sharded, as in 1_plain.h, but unit by unit. So a unit's
// sum runs under the backward of the units below it, and its new parameters are gathered under the
// update of the next unit, and under the next forward. Of 87 ms of communication a step, compute
// then waits for 10 (four H200s, 1.7 B parameters: MEASURED.md); in 1_plain.h it waits for all.
//
//     gradients     [ r0 | r1 | r2 | r3 ]   reduce-scatter ->   rank r holds the sum of its quarter
//                                                               AdamW on the quarter
//     parameters    [ r0 | r1 | r2 | r3 ]   <- all-gather       every rank holds all of it again
//
// What hides the all-gather (--gather-overlap):
//     optimizer   a unit's all-gather runs while the next unit is updated; the step ends when the
//                 last one has arrived
//     forward     besides, it may run on into the next step: a unit waits for its parameters
//                 just before its forward
#pragma once

#include "3_zero.h"

namespace ultrascale::zero {

class Zero1 : public Zero {
public:
    using Zero::Zero;

    // Values and gradients are whole. This rank's shard of the values is a view of them. The
    // reduce-scatter writes the shard of the sum into the gradients.
    TrainingState start() override {
        values_ = allocate_flat(options_.dtype, Memory::parameter, &Parameter::value);
        load_or_initialize(options_, parameters_);
        grads_ = allocate_flat(options_.grad_dtype(), Memory::gradient, &Parameter::grad);
        for (size_t u = 0; u < layout_.size(); ++u) {
            value_shards_.push_back(my_shard(u, unit_slice(values_, u)));
            grad_shards_.push_back(my_shard(u, unit_slice(grads_, u)));
        }
        return start_optimizers();
    }
    void begin_step(int64_t micro_batches) override { parameters_.begin_gradients(micro_batches); }

    void before(const Unit& unit, Pass pass, const Context&) override {
        if (pass != Pass::forward) return;
        for (size_t u : layout_.flats_of(unit)) gathers_[u].wait();
    }
    // exercise 02.1 begin: reduce-scatter complete units; update shards; gather what was updated
    void gradient_complete(Parameter& parameter, const Context&) override {
        if (!unit_complete(parameter)) return;
        const size_t u = layout_.flat_of(parameter);
        const TraceName name = name_of(u);
        const Tensor unit = unit_slice(grads_, u);
        reductions_.push_back(ranks_of(u).reduce_scatter(my_shard(u, unit), unit, Reduce::sum,
                                                         communication_stream()));
        start_over_replicas(u, my_shard(u, unit));
    }
    void wait_for_gradients() override {
        if (last_) parameters_.check_complete();
        for (Work& work : reductions_) work.wait();
        reductions_.clear();
    }

    void update(double lr, const Tensor& squared_norm) override {
        update_shards(lr, squared_norm, [&](size_t u) { start_gather(u, values_); });
        if (zero_.gather_overlap == GatherOverlap::optimizer) finish();
    }
    // exercise 02.1 end

protected:
    Tensor reduced(size_t u) const { return grad_shards_[u]; }  // sums over the ranks

private:
    Tensor values_, grads_;  // (all units, padded)
    std::vector<Work> reductions_;
};

}  // namespace ultrascale::zero
