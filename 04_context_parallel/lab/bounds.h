// The bounds within which --verify lets a run differ from plain training, if its merges round.
#pragma once

#include "../context_options.h"
#include "lab/verify/verify.h"

namespace ultrascale::context_parallel {

// With --merge bf16, attention's outputs are rounded to bf16, each time with a relative error of
// about 2^-9 / sqrt(3) = 0.0011. So correct runs may drift apart as far as in bf16. But everything
// else has the model's dtype; if that is fp32, the gradient and the loss of the first step come
// closer (MEASURED.md).
inline VerifyBounds bounds_of(const ContextOptions& o, DType dtype) {
    if (dtype != DType::fp32 || o.merge == DType::fp32 || !o.has_ring() || o.ring_degree() == 1)
        return verify_bounds(dtype);
    VerifyBounds bounds = verify_bounds(o.merge);
    bounds.gradient = 1e-2, bounds.first_loss = 1e-3;
    bounds.wider_because = "--merge bf16 rounds attention's outputs at each merge";
    return bounds;
}

}  // namespace ultrascale::context_parallel
