// Bounds for the distance of a recipe's results from others (reference.h): about three times what
// was measured (MEASURED.md).
#pragma once

#include "../3_recipes.h"
#include "lab/verify/verify.h"

namespace ultrascale::mixed_precision {

// The relative L2 distance from fp32's first gradient that a recipe's may have.
inline double format_bound(const Recipe& recipe) {
    if (recipe.products == Products::nvfp4) return 0.75;
    if (recipe.fp8()) return 0.25;
    return recipe.activations == DType::fp32   ? 1e-5
           : recipe.activations == DType::fp16 ? 1e-2
                                               : 5e-2;
}
// Bounds of the first comparison: those of the activations' dtype. If 8-bit numbers are rounded, a
// difference of one bit in bf16 can become one of e4m3, which is 16 times as large; more so if
// ranks round their gradients to 8 bits before they are summed; and most in nvfp4, whose numbers
// are so far apart that weights drift, too.
inline VerifyBounds recipe_bounds(const Recipe& recipe) {
    VerifyBounds bounds = verify_bounds(recipe.activations);
    const bool nvfp4 = recipe.products == Products::nvfp4;
    if (recipe.fp8())
        bounds.gradient = is_fp8(recipe.read()) || nvfp4 ? 0.15 : 0.1, bounds.first_loss = 1e-2;
    if (nvfp4) bounds.weights = 0.04;
    return bounds;
}

}  // namespace ultrascale::mixed_precision
