// AdamW with master weights, moments and gradients of any dtype, with scales and stochastic
// rounding. Beside core/ops.h, whose conventions hold.
#pragma once

#include <optional>

#include "core/ops.h"

namespace ultrascale::ops {

// As AdamWItem, but all five may be fp32, bf16, fp16, e4m3 or e5m2.
struct AdamWAnyItem {
    Tensor value, master, m, v, gradient;
    float weight_decay;
    // A tensor of fp16, e4m3 or e5m2 with a scale (1) fp32 stands for scale * tensor. The
    // gradient's is an input (of any dtype). The others' are read, and then written: the new
    // numbers' largest magnitude / the dtype's largest number, for which the states are read twice,
    // rounded up to a power of two: so a number that does not change is not rounded again. A state
    // of zeros may have any scale. v in fp16, e4m3 or e5m2 is not rounded to zero, but to the
    // smallest number instead: an update is divided by its root.
    Tensor value_scale = {}, master_scale = {}, m_scale = {}, v_scale = {}, gradient_scale = {};
    // Rounds value stochastically: element i with the bits first + i of this stream (a new name for
    // each step), whatever piece of a parameter the tensors are. Then value may be its own master.
    std::optional<Random> rounding = {};
    uint64_t first = 0;
    // Rounds m and v stochastically where they are fp8, element i with the bits 2 (first + i) and
    // 2 (first + i) + 1 of this stream: to nearest, 0.95 v would be v again for many numbers of 3
    // bits of mantissa.
    std::optional<Random> state_rounding = {};
};
// adamw() (core/ops.h) of such items, computed in fp32. squared_norm is that of the gradients with
// their scales. skip (1) int32, on the device: where it is not 0, nothing is updated. On CUDA in
// one launch, or four if there are scales.
void adamw_any(const std::vector<AdamWAnyItem>& items, const Tensor& squared_norm,
               const AdamWSettings& settings, const Tensor& skip = {});

}  // namespace ultrascale::ops
