// What a run of this chapter can choose besides its recipe.
#pragma once

#include "3_recipes.h"
#include "4_loss_scale.h"

namespace ultrascale::mixed_precision {

// The factor in front of gradients that ranks sum in 8 bits (9_fp8_all_reduce.h).
enum class SumScaling { pre, post, automatic };

// The products whose sums stay in the tensor cores' accumulators, of 14 bits, to their end.
enum class FastSums { by_recipe, none, forward, all };

struct PrecisionOptions {
    Recipe recipe;
    LossScaleOptions loss_scale;

    // Of the linears in fp8:
    DType gradient_format = DType::e5m2;  // of dy; x and W are e4m3
    int64_t history = 1024;               // delayed scaling: steps
    int margin = 0;                       // delayed scaling: powers of two of room
    bool powers_of_two = false;           // scales
    FastSums fast = FastSums::by_recipe;
    bool keep_fp8 = false;  // keep inputs, and those of SwiGLU, in 8 bits
    bool unfused = false;   // not as in 7_fused_quantisation.h
    bool head_fp8 = false;  // 7_fp8_head.h
    bool smooth = false;    // 7_smooth_swiglu.h

    SumScaling sum_scaling = SumScaling::automatic;
    uint64_t seed = 1;  // of stochastic rounding

    // By recipe, forward is fast and backward is not, as in Transformer Engine and torchao. With
    // tiles, which are there for exact sums, neither is.
    bool fast_forward() const {
        return fast == FastSums::by_recipe ? recipe.products != Products::tile
                                           : fast != FastSums::none;
    }
    bool fast_backward() const { return fast == FastSums::all; }
};

}  // namespace ultrascale::mixed_precision
