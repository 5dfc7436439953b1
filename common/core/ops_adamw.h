// Shared by the backends' updates. Private to common/core, common/cpu, common/cuda, and a chapter's
// kernels/.
#pragma once

#include <cmath>

#include "ops.h"

namespace ultrascale::ops {

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
