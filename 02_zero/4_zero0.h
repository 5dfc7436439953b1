// --stage 0 is plain data parallelism, with which the other stages are compared. Every rank holds
// everything. Each unit's gradients are all-reduced as soon as they are complete, during the
// backward of the units below.
//
//     compute        | forward | backward  head    L8    L7  ...  L1 |  | update of everything |
//     communication  |                        | all-reduce head | L8 | ... | L1 |
#pragma once

#include "3_zero.h"

namespace ultrascale::zero {

class Zero0 : public Zero {
public:
    using Zero::Zero;

    TrainingState start() override {
        values_ = allocate_flat(options_.dtype, Memory::parameter, &Parameter::value);
        grads_ = allocate_flat(options_.grad_dtype(), Memory::gradient, &Parameter::grad);
        load_or_initialize(options_, parameters_);
        optimizers_.emplace_back(parameters_, options_.optimizer);
        return resume();
    }
    void begin_step(int64_t micro_batches) override { parameters_.begin_gradients(micro_batches); }

    void gradient_complete(Parameter& parameter, const Context&) override {
        if (!unit_complete(parameter)) return;
        const size_t u = layout_.flat_of(parameter);
        const TraceName name = name_of(u);
        under_way_.push_back(
            ranks_of(u).all_reduce(unit_slice(grads_, u), Reduce::sum, communication_stream()));
    }
    void update(double lr, const Tensor& squared_norm) override {
        optimizers_.front().step(lr, squared_norm);
    }

    std::vector<TensorPart> gradients() override { return parameters_.parts(&Parameter::grad); }

protected:
    void wait_for_gradients() override {
        if (last_) parameters_.check_complete();
        for (Work& work : under_way_) work.wait();
        under_way_.clear();
    }
    Tensor reduced(size_t u) const { return unit_slice(grads_, u); }  // sums over the ranks

private:
    // Every rank has the whole gradient, but uses only its shards: that is less work, and gives the
    // same bits as the other stages.
    Tensor sum_squares() override {
        std::vector<Tensor> shards;
        for (size_t u = 0; u < layout_.size(); ++u) {
            const Tensor whole = unit_slice(grads_, u);
            sum_over_replica_groups(u, whole, layout_.whole(u));
            shards.push_back(my_shard(u, whole));
        }
        return sum_squares_of(shards);
    }

    Tensor values_, grads_;  // (all units, padded)
    std::vector<Work> under_way_;
};

}  // namespace ultrascale::zero
