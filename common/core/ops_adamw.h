// Shared by the backends' updates. Private to common/core, common/cpu, common/cuda, and a chapter's
// kernels/.
#pragma once

#include <algorithm>
#include <cmath>

#include "ops.h"

namespace ultrascale::ops {

// What clipping to the global norm max_norm (0: none) multiplies a gradient by, on the host.
inline double clip_factor(const Tensor& squared_norm, double max_norm) {
    if (max_norm <= 0) return 1;
    return std::min(1.0, max_norm / (std::sqrt(*squared_norm.as<double>()) + 1e-6));
}

// The constants that the update of one element needs, worked out from the settings.
struct AdamWFactors {
    float clip, decay, beta1, beta2, step_size, root_correction, eps;
};
inline AdamWFactors adamw_factors(const AdamWSettings& s, float weight_decay, double clip) {
    const double correction1 = 1 - std::pow(double(s.beta1), double(s.step));
    const double correction2 = 1 - std::pow(double(s.beta2), double(s.step));
    return {float(clip),
            float(1.0 - double(s.lr) * weight_decay),
            s.beta1,
            s.beta2,
            float(s.lr / correction1),
            float(1 / std::sqrt(correction2)),
            s.eps};
}

}  // namespace ultrascale::ops
