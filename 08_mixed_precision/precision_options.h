// The choices of a run of this chapter besides its recipe.
#pragma once

#include "3_recipes.h"
#include "4_loss_scale.h"

namespace ultrascale::mixed_precision {

// The factor in front of gradients that ranks sum in 8 bits (9_fp8_all_reduce.h).
enum class SumScaling { pre, post, automatic };

// Which products keep their sums to the end in the tensor cores' accumulators, of 14 bits.
enum class FastSums { by_recipe, none, forward, all };

struct PrecisionOptions {
    Recipe recipe;
    LossScaleOptions loss_scale;

    // For the linears in fp8:
    DType gradient_format = DType::e5m2;  // dy's; x and W are e4m3 (nvfp4: all are e2m1)
    int64_t history = 1024;               // delayed scaling: steps
    int margin = 0;                       // delayed scaling: 2^margin of headroom
    bool powers_of_two = false;           // rounds scales up to powers of two
    FastSums fast = FastSums::by_recipe;
    bool keep_fp8 = false;  // keep the linears' and SwiGLU's inputs in 8 bits
    bool unfused = false;   // do not fuse as in 7_fused_quantisation.h
    bool head_fp8 = false;  // 7_fp8_head.h
    bool smooth = false;    // 7_smooth_swiglu.h

    SumScaling sum_scaling = SumScaling::automatic;
    uint64_t seed = 1;  // for stochastic rounding

    // By the recipe, forward is fast and backward is not, as in Transformer Engine and torchao.
    // With tiles, whose purpose is exact sums, neither is.
    bool fast_forward() const {
        return fast == FastSums::by_recipe ? recipe.products != Products::tile
                                           : fast != FastSums::none;
    }
    bool fast_backward() const { return fast == FastSums::all; }
};

// What dy is in unless --gradient-format says otherwise.
inline DType gradient_format_of(const Recipe& recipe) {
    const bool small_groups = recipe.products == Products::tile || recipe.products == Products::mx;
    return small_groups ? DType::e4m3 : DType::e5m2;
}

}  // namespace ultrascale::mixed_precision
