// Delayed scales: a tensor's scale is computed from the amax of earlier steps, while the plain
// linear (2_plain_fp8_linear.h) measures it. So the tensor is read only once, and training is 1 %
// faster (`te` beside `tensor`, 8 layers of Llama-3-8B, H100). But a new peak saturates.
//
//     current   scale = amax(x) / 448             x is read twice: for its amax, and to be rounded
//     delayed   scale = max(history) / 448        x is read once; meanwhile its amax is found, for
//                                                 the steps to come. What grows past the history's
//                                                 largest saturates once.
//
//     history   [ .. 3.1  2.9  3.4 ]  the amax of the last n steps, all micro-batches and ranks
//
// The history is part of the training's state, as the moments are: a resumed run with another
// history would round differently. So it is a buffer (parameter.h).
//
// Transformer Engine's recipes (NVIDIA): DelayedScaling with n = 1024; Float8CurrentScaling.
#pragma once

#include "comm/comm.h"
#include "kernels/ops_quantised.h"
#include "model/parameter.h"

namespace ultrascale::mixed_precision {

// The histories of all tensors that are rounded with delayed scales. A linear adds its tensors when
// it is built; allocate() is called when the model is complete.
class AmaxHistories {
public:
    explicit AmaxHistories(int64_t steps, int margin) : steps_(steps), margin_(margin) {}

    size_t add(DType dtype) {
        dtypes_.push_back(dtype);
        return dtypes_.size() - 1;
    }
    void allocate(ParameterList& parameters) {
        if (dtypes_.empty()) return;
        const int64_t n = int64_t(dtypes_.size());
        histories_ = parameters.add_buffer("amax_history", n * steps_);
        scales_ = parameters.add_buffer("fp8_scale", n * stride);
        next_ = parameters.add_buffer("amax_history.next", 1);
        ops::fill(scales_, 1);
        amax_ = Tensor::zeros({n}, DType::fp32, Memory::parameter);
    }

    // A tensor's scale in this step: (1).
    Tensor scale(size_t tensor) const { return one(scales_, tensor * stride); }
    // The place where quantise() leaves the largest magnitude that it saw in this step: (1).
    Tensor amax(size_t tensor) const { return one(amax_, tensor); }
    // True in a new run, which has no history: its first step is rounded with measured scales.
    bool is_empty() const { return position_ == 0; }

    // Called after a step: ranks hold copies of the scales, so they agree on the amax. `ranks` have
    // other samples, or other parts of the same tensors (tp).
    void end_step(const Communicator& ranks) {
        if (dtypes_.empty()) return;
        if (ranks.size() > 1) ranks.all_reduce(amax_, Reduce::max);
        for (size_t i = 0; i < dtypes_.size(); ++i)
            ops::delayed_scale(scale(i),
                               histories_.slice(int64_t(i) * steps_, int64_t(i + 1) * steps_),
                               amax(i), position_, dtypes_[i], margin_);
        ops::fill(amax_, 0);
        ops::fill(next_, float(++position_));
    }
    void resume() {
        if (next_) position_ = int64_t(next_.to_host<float>()[0]);
    }

    // cuBLAS reads a scale only from a multiple of 16 bytes, the room of four numbers.
    static constexpr int64_t stride = 4;

private:
    static Tensor one(const Tensor& all, size_t i) { return all.slice(int64_t(i), int64_t(i) + 1); }
    int64_t steps_;
    int margin_;
    std::vector<DType> dtypes_;  // each tensor's
    Tensor histories_, scales_, amax_, next_;
    int64_t position_ = 0;  // steps so far
};

}  // namespace ultrascale::mixed_precision
