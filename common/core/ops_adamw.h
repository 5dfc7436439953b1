// What the backends' updates share. Private to common/core, common/cpu and common/cuda.
#pragma once

#include <cmath>

#include "ops.h"

namespace ultrascale::ops {

// An update with fp32 master weights, moments of this dtype, no scales, and one dtype of values and
// one of gradients: with fp32 the common case, for which both backends have a loop of their own.
bool adamw_is_plain(const std::vector<AdamWItem>& items, const AdamWSettings& settings,
                    DType moments = DType::fp32);

// What the elements of an item need of the settings.
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

// The update of the general case on the host's threads.
void adamw_any_on_host(const AdamWItem& item, const AdamWFactors& factors);

// The tensors of an item that are written, in the order in which their scales are kept.
inline constexpr int adamw_written = 4;
struct AdamWWritten {
    const Tensor *tensor, *scale;
};
inline std::array<AdamWWritten, adamw_written> written(const AdamWItem& item) {
    return {{{&item.value, &item.value_scale},
             {&item.master, &item.master_scale},
             {&item.m, &item.m_scale},
             {&item.v, &item.v_scale}}};
}
inline bool has_scales(const AdamWItem& item) {
    for (const AdamWWritten& w : written(item))
        if (*w.scale) return true;
    return false;
}
// The largest number of a dtype that has scales.
float largest_scaled(DType dtype);
// The smallest number that v becomes instead of zero: the dtype's own, or 0 where v has the range
// of fp32.
float smallest_second_moment(DType dtype);

}  // namespace ultrascale::ops
