// With --stage 2 the gradients are sharded too. A unit's whole gradient exists only from the
// beginning of its backward until it has been reduced (5_gradient_buffers.h); what stays is the
// shard of the sum. That saves (n-1)/n of the gradients: of 6.4 GiB 3.9 on four GPUs, buffers
// included (MEASURED.md). The price is that every micro-batch's gradients must travel. The
// parameters are whole, and are gathered after the update, as in stage 1.
//
//     compute         backward L8   backward L7         backward L6
//     communication                 reduce-scatter L8   reduce-scatter L7
//     gradients held  [L8]          [L8][L7]            [L7][L6]            and 1/n of everything
#pragma once

#include "3_zero.h"
#include "5_gradient_buffers.h"

namespace ultrascale::zero {

class Zero2 : public Zero {
public:
    using Zero::Zero;

    TrainingState start() override {
        values_ = allocate_flat(options_.dtype, Memory::parameter, &Parameter::value);
        load_or_initialize(options_, parameters_);
        for (size_t u = 0; u < layout_.size(); ++u)
            value_shards_.push_back(my_shard(u, unit_slice(values_, u)));
        grad_shards_ = buffers_.allocate_shards(layout_, options_.grad_dtype());
        return start_optimizers();
    }
    void begin_step(int64_t) override {
        parameters_.begin_gradients();  // complete after every micro-batch, not after the last one
        buffers_.begin_step();
        last_ = false;  // until the last micro-batch begins; in a pipeline none is announced
    }

    void before(const Unit& unit, Pass pass, const Context&) override {
        if (pass == Pass::forward)
            for (size_t u : layout_.flats_of(unit)) gathers_[u].wait();
        buffers_.make_room(unit, pass);
    }
    void gradient_complete(Parameter& parameter, const Context&) override {
        buffers_.complete(parameter);
    }
    void after(const Unit& unit, Pass, const Context&) override {
        for (size_t u : buffers_.take_complete(unit)) reduce(u);
    }
    void update(double lr, const Tensor& squared_norm) override {
        update_shards(lr, squared_norm, [&](size_t u) { start_gather(u, values_); });
        if (zero_.gather_overlap == GatherOverlap::optimizer) finish();
    }

protected:
    void wait_for_gradients() override {
        parameters_.check_complete();
        for (size_t u : buffers_.take_rest()) reduce(u);
        buffers_.wait(0);
    }
    void reduce(size_t u) {
        const TraceName name = name_of(u);
        GradientBuffers::Reduction r = buffers_.take(u);
        start_sum(r);
        r.then = [this, u] { start_over_replicas(u, grad_shards_[u]); };
        buffers_.under_way(std::move(r));
    }
    // Starts to sum a unit's gradient over its ranks, of which each receives its shard.
    virtual void start_sum(GradientBuffers::Reduction& r) {
        r.work =
            ranks_of(r.unit).reduce_scatter(r.sum, r.whole, Reduce::sum, communication_stream());
    }

    GradientBuffers buffers_;

private:
    Tensor values_;  // (all units, padded)
};

}  // namespace ultrascale::zero
