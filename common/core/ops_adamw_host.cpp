// AdamW on the host's threads, in one pass over the parameters: torch.optim.AdamW after
// torch.nn.utils.clip_grad_norm_. The CPU backend's update, and every backend's update of what is
// offloaded to the host.
#include <cmath>

#include "ops_host.h"

namespace ultrascale::ops {

namespace {

struct Factors {
    float clip, decay, beta1, beta2, step_size, root_correction, eps;
};

// value may be master itself: both writes then store the same number. (The compiler vectorises
// std::sqrt only under -fno-math-errno, as it may set errno otherwise.)
template <class V, class G>
void update(V* value, float* master, float* m, float* v, const G* gradient, Factors f, int64_t n) {
#pragma omp parallel for simd if (n > parallel_threshold)
    for (int64_t i = 0; i < n; ++i) {
        const float g = float(gradient[i]) * f.clip;
        const float first = m[i] + (1.0f - f.beta1) * (g - m[i]);
        const float second = f.beta2 * v[i] + (1.0f - f.beta2) * g * g;
        const float p = master[i] * f.decay -
                        f.step_size * first / (std::sqrt(second) * f.root_correction + f.eps);
        m[i] = first;
        v[i] = second;
        master[i] = p;
        store(value[i], p);
    }
}

}  // namespace

AdamWCost adamw_cost(const std::vector<AdamWItem>& items, const AdamWSettings& settings) {
    check(settings.step >= 1, "adamw: steps count from 1");
    AdamWCost cost;
    for (const AdamWItem& item : items) {
        const Tensor &value = item.value, &master = item.master, &m = item.m, &v = item.v,
                     &gradient = item.gradient;
        const int64_t n = master.numel();
        check(value.numel() == n && m.numel() == n && v.numel() == n && gradient.numel() == n,
              "adamw: sizes differ");
        check(value.dtype() == items[0].value.dtype() &&
                  gradient.dtype() == items[0].gradient.dtype(),
              "adamw: dtypes differ");
        cost.flops += 15.0 * double(n);
        cost.bytes += double(value.bytes() + 2 * m.bytes() + 2 * v.bytes() + gradient.bytes() +
                             master.bytes());
        if (value.data() != master.data()) cost.bytes += double(master.bytes());
    }
    return cost;
}

void adamw_on_host(const std::vector<AdamWItem>& items, const Tensor& squared_norm,
                   const AdamWSettings& s) {
    double clip = 1;
    if (s.max_norm > 0)
        clip = std::min(1.0, s.max_norm / (std::sqrt(*squared_norm.as<double>()) + 1e-6));
    const double correction1 = 1 - std::pow(double(s.beta1), double(s.step));
    const double correction2 = 1 - std::pow(double(s.beta2), double(s.step));
    for (const AdamWItem& item : items) {
        const Factors factors = {float(clip),
                                 float(1.0 - double(s.lr) * item.weight_decay),
                                 s.beta1,
                                 s.beta2,
                                 float(s.lr / correction1),
                                 float(1 / std::sqrt(correction2)),
                                 s.eps};
        with_type(item.value.dtype(), [&]<class V>(V) {
            with_type(item.gradient.dtype(), [&]<class G>(G) {
                update(item.value.as<V>(), item.master.as<float>(), item.m.as<float>(),
                       item.v.as<float>(), item.gradient.as<G>(), factors, item.master.numel());
            });
        });
    }
}

}  // namespace ultrascale::ops
