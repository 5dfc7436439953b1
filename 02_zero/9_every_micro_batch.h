// With --no-sync off stages 0 and 1 communicate gradients after each micro-batch, as stages 2 and 3
// must, and add up the results. (Otherwise each backward adds to the gradients, which are
// communicated once, in the last micro-batch.) It costs A times the bytes and a second tensor for
// the sums, and gains nothing but the same bits as stages 2 and 3, so that they can be compared.
//
//     --no-sync on     backward 0    backward 1    ...   backward A-1 | communication
//     --no-sync off    backward 0 | communication | sum =   backward 1 | communication | sum +=
#pragma once

#include <vector>

#include "3_zero.h"
#include "core/ops.h"

namespace ultrascale::zero {

// Stage: Zero0 or Zero1. reduced(u): what its communication makes of a unit's gradients.
template <class Stage>
class EveryMicroBatch : public Stage {
public:
    using Stage::Stage;

    TrainingState start() override {
        const TrainingState state = Stage::start();
        for (size_t u = 0; u < layout_.size(); ++u) {
            const Tensor sum = this->reduced(u);
            sums_.push_back(Tensor::zeros(sum.shape(), sum.dtype(), Memory::gradient));
        }
        return state;
    }
    void begin_step(int64_t) override { parameters_.begin_gradients(); }

protected:
    void wait_for_gradients() override {
        parameters_.check_complete();
        Stage::wait_for_gradients();
        for (size_t u = 0; u < layout_.size(); ++u) {
            const TraceName name = this->name_of(u);
            const Tensor reduced = this->reduced(u);
            if (first_)
                ops::copy(sums_[u], reduced);
            else if (!last_)
                ops::add(sums_[u], reduced);
            else
                ops::add(reduced, sums_[u]);  // where the update looks for it
        }
        if (!last_) parameters_.begin_gradients();
    }

    using Stage::first_, Stage::last_, Stage::layout_, Stage::parameters_;
    std::vector<Tensor> sums_;  // of each unit, over the micro-batches before this one
};

}  // namespace ultrascale::zero
