// AdamW with master weights, moments and gradients of any dtype, with scales and stochastic
// rounding. The conventions of core/ops.h hold here, too.
#pragma once

#include <optional>

#include "core/ops.h"

namespace ultrascale::ops {

// Like AdamWItem, but all five tensors may be fp32, bf16, fp16, e4m3 or e5m2.
struct AdamWAnyItem {
    Tensor value, master, m, v, gradient;
    float weight_decay;
    // A tensor of fp16, e4m3 or e5m2 with a scale (1) fp32 stands for scale * tensor. The
    // gradient's scale is an input (and the gradient may have any dtype). The other scales are
    // read, and then written: a new scale is the new numbers' largest magnitude / the dtype's
    // largest number, for which the states are read twice. It is rounded up to a power of two, so
    // that a number that does not change is not rounded again. A state of zeros may have any scale.
    // v in fp16, e4m3 or e5m2 is never rounded to zero, but to the smallest number instead, because
    // an update is divided by its root.
    Tensor value_scale = {}, master_scale = {}, m_scale = {}, v_scale = {}, gradient_scale = {};
    // Rounds value stochastically. Element i uses the bits first + i of this stream (a new name for
    // each step), whatever piece of a parameter the tensors are. Then value may be its own master.
    std::optional<Random> rounding = {};
    uint64_t first = 0;
    // Rounds m and v stochastically if they are fp8. Element i uses the bits 2 (first + i) and 2
    // (first + i) + 1 of this stream. Rounded to nearest, 0.95 v would be v again for many numbers
    // with 3 bits of mantissa.
    std::optional<Random> state_rounding = {};
};
// Does what adamw() (core/ops.h) does for such items, computed in fp32. squared_norm is that of the
// gradients with their scales. skip is (1) int32 on the device: if it is not 0, nothing is updated.
// On CUDA it takes one launch, or four if there are scales.
void adamw_any(const std::vector<AdamWAnyItem>& items, const Tensor& squared_norm,
               const AdamWSettings& settings, const Tensor& skip = {});

}  // namespace ultrascale::ops
