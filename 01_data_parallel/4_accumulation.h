// When gradients are summed: once a step, or after each micro-batch (--grad-accum, --no-sync).
//
// A step's gradient is a sum over its micro-batches and over the ranks. The order of the additions
// changes only the rounding, so one sum over the ranks is enough:
//
//     once         rank 0   m1   +m2   +m3 --.                   one all-reduce a step
//     (no_sync)    rank 1   m1   +m2   +m3 --+--> gradient
//
//     after each   rank 0   m1 --.        m2 --.        m3 --.   three of the same size, and
//                  rank 1   m1 --+--> +   m2 --+--> +   m3 --+   a second tensor for their sum
//
// PyTorch's DistributedDataParallel sums after each micro-batch, unless all backwards but the last
// run under its no_sync(). With three micro-batches, summing once sends a third of the bytes.
#pragma once

#include "1_naive.h"
#include "core/ops.h"

namespace ultrascale::data_parallel {

class Accumulation {
public:
    // every_time: sum after each micro-batch.
    Accumulation(ParameterList& parameters, GradientSync& sync, bool every_time = false)
        : parameters_(parameters), sync_(sync) {
        const Tensor& gradients = parameters.flat_grads();
        if (every_time)
            sums_ = Tensor::empty(gradients.shape(), gradients.dtype(), Memory::gradient);
    }

    void begin_step(int64_t micro_batches) {
        micro_batches_ = micro_batches;
        parameters_.begin_gradients(sums_ ? 1 : micro_batches);
    }
    // Called after micro-batch m's backward. Work that is queued on the compute stream after the
    // last call sees the gradients' sums over all micro-batches and ranks.
    void end_micro_batch(int64_t m) {
        const bool first = m == 0, last = m == micro_batches_ - 1;
        if (!sums_) {  // later micro-batches only add to the gradients
            if (last) wait();
            return;
        }
        wait();
        const Tensor& gradients = parameters_.flat_grads();
        first ? ops::copy(sums_, gradients) : ops::add(sums_, gradients);
        parameters_.begin_gradients();
        if (last) ops::copy(gradients, sums_);
    }

private:
    void wait() {
        phase("wait for gradients", [&] { sync_.finish(); });
    }

    ParameterList& parameters_;
    GradientSync& sync_;
    int64_t micro_batches_ = 1;
    Tensor sums_;
};

}  // namespace ultrascale::data_parallel
