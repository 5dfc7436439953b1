// A linear's weights, as its products read them. The plain linear rounds them twice a micro-batch,
// for y and, transposed, for dx. Here the second rounding reuses the first one's scale; a linear
// that multiplies several times holds the rounded weights; and a recipe may keep them in 8 bits:
//
//     weights in bf16       2 bytes    rounded for each product
//     weights in e4m3       1 byte     rounded once a step, from the master weights, by the update
//                                      (fp8-lm, deepseek, nanotron), with their scales beside them
//
// With blocks of 128 x 128, or one scale for the tensor, the transpose has the same numbers. So for
// dx weights that are kept in 8 bits are only put in another order.
#pragma once

#include <vector>

#include "6_rounding.h"

namespace ultrascale::mixed_precision {

class Fp8Weights {
public:
    Fp8Weights(std::vector<Parameter*> rows, Fp8Shared& shared)
        : parameters_(std::move(rows)),
          shared_(shared),
          w_(shared, DType::e4m3, shared.weights()) {}

    // Returns the weights (out, in), for y.
    ops::Quantised rows(bool observes) {
        if (held_.rows) return held_.rows;
        if (scales_) return {values(), scales_};
        const ops::Quantised rounded = w_.rows(values(), observes);
        if (shared_.measures_once()) measured_ = rounded.scales;
        return rounded;
    }
    // Returns the weights (in, out), for dx.
    ops::Quantised transposed() const {
        if (held_.columns) return held_.columns;
        const Tensor own = values();
        if (!scales_) return w_.columns(own, measured_);
        const ops::Quantised result = ops::empty_quantised(own.cols(), own.rows(), own.dtype(),
                                                           shared_.weights(), Memory::workspace);
        ops::transpose_quantised(result, {own, scales_}, scaling());
        return result;
    }

    // Keeps the rounded weights for several products.
    void hold() { held_ = w_.both(values(), {.columns = true}); }
    void release() { held_ = {}; }

    // ---- weights that are kept in fp8 ----
    void allocate_scales() {
        scales_ =
            Tensor::zeros(ops::scales_shape(values().rows(), values().cols(), shared_.weights()),
                          DType::fp32, Memory::parameter);
    }
    // Rounds the master weights (out, in), after they have changed.
    void round(const Tensor& master) { ops::quantise({values(), scales_}, {}, master, scaling()); }

private:
    Tensor values() const { return stacked_values(parameters_); }
    ops::Scaling scaling() const {
        return {.group = shared_.weights(), .powers_of_two = shared_.options.powers_of_two};
    }
    std::vector<Parameter*> parameters_;
    Fp8Shared& shared_;
    Rounding w_;
    Tensor scales_;        // of weights in fp8; empty: weights are rounded for each product
    Tensor measured_;      // the scale of weights in 16 bits, by the last forward; may be empty
    RowsAndColumns held_;  // rounded for several products
};

}  // namespace ultrascale::mixed_precision
