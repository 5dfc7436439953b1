// Loss scaling: during backward, gradients that are too small for fp16 are multiplied by S.
//
//     loss * S -> backward -> gradients * S -> sum over ranks -> / S -> norm, clip, update
//
// fp16's smallest number is 2^-24, and a gradient below half of that becomes 0. Backward is linear:
// multiplying the loss by S multiplies every gradient on the way by S, and a power of two changes
// no bit of a mantissa. A gradient above 65,504 becomes infinite; then the step is skipped. S is:
//
//     dynamic    S starts at 2^16, doubles after 2,000 steps without overflow, and halves at each
//                overflow, down to 1. (Without a floor, a model that overflows for another reason
//                takes it to 1e-304.)
//     static     S does not change. One below 1 makes gradients as small as in a larger batch,
//                because a token's gradient is divided by the batch's tokens: with S = 2^-13, 128
//                tokens have the gradients of a million, of which naive fp16 keeps little.
//
// The ranks must agree before any of them updates: otherwise a rank whose gradients overflowed
// would skip the step and the others would not, and from then on they would train different models.
// The order matters, too: gradients must be unscaled before their norm is compared with a limit.
//
// Micikevicius et al. 2018, Mixed Precision Training (arXiv 1710.03740), section 3.2; the dynamic
// scale is NVIDIA's (PyTorch's GradScaler).
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "comm/comm.h"
#include "core/ops.h"
#include "core/trace.h"
#include "model/parameter.h"

namespace ultrascale::mixed_precision {

struct LossScaleOptions {
    bool scaled = false;   // false: the scale is 1, and no step is skipped
    double fixed = 0;      // static: this power of two; 0: dynamic
    double start = 65536;  // 2^16
    int64_t growth_interval = 2000;
    static constexpr double floor = 1, ceiling = 16777216;     // 2^24
    static constexpr double smallest = 5.9604644775390625e-8;  // 2^-24, if static
};

class LossScale {
public:
    LossScale(const LossScaleOptions& options, ParameterList& parameters)
        : options_(options), scale_(options.fixed > 0 ? options.fixed : options.start) {
        if (!options.scaled) scale_ = 1;
        if (!options.scaled) return;
        state_ = parameters.add_buffer("loss_scale", 2);
        found_ = Tensor::zeros({1}, DType::int32, Memory::workspace);
        write();
    }

    bool scaled() const { return options_.scaled; }
    double scale() const { return scale_; }

    // Called after backward and the sum over ranks: finds out whether any rank's gradient is
    // infinite or NaN. The host does not wait for the answer; the update reads skip() on the
    // device.
    void agree(const std::vector<std::vector<Tensor>>& gradients, const Communicator& ranks) {
        if (!scaled()) return;
        device_zero(found_.data(), found_.bytes());
        for (const std::vector<Tensor>& same_dtype : gradients)
            ops::find_not_finite(found_, same_dtype);
        if (ranks.size() > 1) ranks.all_reduce(found_, Reduce::max);
    }
    // (1) int32 on the device; empty if no step is ever skipped.
    Tensor skip() const { return found_; }
    bool skips() const { return found_ && found_.to_host<int32_t>()[0] != 0; }  // the host waits

    // Called after the step: sets the next step's scale. Returns whether this step was skipped.
    bool end_step(int64_t step) {
        if (!scaled()) return false;
        const bool skipped = skips();
        if (skipped) skipped_.push_back(step);
        if (options_.fixed > 0) return skipped;
        // exercise 08.2 begin: halve at an overflow, with a floor; double after enough good steps
        if (skipped)
            scale_ = std::max(scale_ / 2, LossScaleOptions::floor), good_steps_ = 0;
        else if (++good_steps_ == options_.growth_interval)
            scale_ = std::min(scale_ * 2, LossScaleOptions::ceiling), good_steps_ = 0;
        // exercise 08.2 end
        write();
        return skipped;
    }
    const std::vector<int64_t>& skipped() const { return skipped_; }  // the steps' numbers

    // Reads the scale from the buffer, after a resumed run has loaded it.
    void resume() {
        if (!scaled() || options_.fixed > 0) return;
        const std::vector<float> state = state_.to_host<float>();
        scale_ = double(state[0]), good_steps_ = int64_t(state[1]);
    }

private:
    void write() {
        const float state[] = {float(scale_), float(good_steps_)};
        state_.copy_from_host(state);
    }
    LossScaleOptions options_;
    double scale_;
    int64_t good_steps_ = 0;
    // (2): the scale, and the good steps since it changed; (1): not 0 after an overflow.
    Tensor state_, found_;
    std::vector<int64_t> skipped_;
};

}  // namespace ultrascale::mixed_precision
