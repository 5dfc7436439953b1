// --stage 0: plain data parallelism, to compare with. Everything is held n times; each unit's
// gradients are all-reduced when they are
// complete, under the backward of the units below.
//
//     compute        | forward | backward  head    L8    L7  ...  L1 |  | update of everything |
//     communication  |                        | all-reduce head | L8 | ... | L1 |
#pragma once

#include "zero.h"

namespace ultrascale {

class Zero0 : public Zero {
public:
    using Zero::Zero;

    TrainingState start() override {
        values_ = allocate_flat(options_.dtype, Memory::parameter, &Parameter::value);
        grads_ = allocate_flat(options_.grad_dtype(), Memory::gradient, &Parameter::grad);
        if (zero_.every_micro_batch)
            sums_ = Tensor::zeros(grads_.shape(), grads_.dtype(), Memory::gradient);
        load_or_initialize(options_, parameters_);
        optimizers_.emplace_back(parameters_, options_.optimizer);
        return resume();
    }

    void gradient_complete(Parameter& parameter, const Context&) override {
        if (!unit_complete(parameter)) return;
        const size_t u = layout_.flat_of(parameter);
        const TraceName name = name_of(u);
        under_way_.push_back(
            ranks_of(u).all_reduce(of_unit(grads_, u), Reduce::sum, communication_stream()));
    }
    void end_micro_batch() override {
        if (last_ || zero_.every_micro_batch) parameters_.check_complete();
        for (Work& work : under_way_) work.wait();
        under_way_.clear();
        if (!zero_.every_micro_batch) return;
        // The sum over micro-batches of what the ranks summed each time; the last one leaves it
        // where it belongs.
        first_ ? ops::copy(sums_, grads_) : ops::add(sums_, grads_);
        last_ ? ops::copy(grads_, sums_) : parameters_.begin_gradients();
    }
    // Every rank has the whole gradient, yet looks at its shards only: less work, and the other
    // stages' bits.
    Tensor squared_norm() override {
        std::vector<Tensor> wholes, shards;
        for (size_t u = 0; u < layout_.size(); ++u) {
            wholes.push_back(of_unit(grads_, u));
            shards.push_back(my_shard(u, wholes.back()));
        }
        sum_besides(wholes);
        return sum_squares(shards);
    }
    void update(double lr, const Tensor& squared_norm) override {
        optimizers_.front().step(lr, squared_norm);
    }

    std::vector<TensorPart> gradients() override { return parameters_.parts(&Parameter::grad); }

private:
    Tensor values_, grads_, sums_;  // (all units, padded)
    std::vector<Work> under_way_;
};

}  // namespace ultrascale
