// AdamW on the host's threads, in one pass over the parameters: torch.optim.AdamW after
// torch.nn.utils.clip_grad_norm_. The CPU backend updates everything with it, other backends only
// the parameters that are offloaded to the host.
#include "ops_adamw.h"
#include "ops_host.h"

namespace ultrascale::ops {

namespace {

// value may be master itself: both writes then store the same number. (The compiler vectorises
// std::sqrt only under -fno-math-errno, as it may set errno otherwise.)
template <class V, class G>
void update(V* value, float* master, float* m, float* v, const G* gradient, AdamWFactors f,
            int64_t n) {
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

void check_item(const AdamWItem& item, const AdamWItem& first) {
    const int64_t n = item.master.numel();
    check(item.value.numel() == n && item.m.numel() == n && item.v.numel() == n &&
              item.gradient.numel() == n,
          "adamw: sizes differ");
    check(item.master.dtype() == DType::fp32, "adamw: masters are fp32");
    check(item.value.dtype() == first.value.dtype() &&
              item.gradient.dtype() == first.gradient.dtype() &&
              item.m.dtype() == first.m.dtype() && item.v.dtype() == first.m.dtype(),
          "adamw: items share their dtypes");
}

}  // namespace

AdamWCost adamw_cost(const std::vector<AdamWItem>& items, const AdamWSettings& settings) {
    check(settings.step >= 1, "adamw: steps count from 1");
    AdamWCost cost;
    for (const AdamWItem& item : items) {
        check_item(item, items[0]);
        const auto bytes = [](const Tensor& t) { return double(t.bytes()); };
        cost.flops += 15.0 * double(item.master.numel());
        cost.bytes += bytes(item.gradient) + bytes(item.master) + bytes(item.value) +
                      2 * (bytes(item.m) + bytes(item.v));
        if (item.value.data() != item.master.data()) cost.bytes += bytes(item.master);
    }
    return cost;
}

void adamw_on_host(const std::vector<AdamWItem>& items, const Tensor& squared_norm,
                   const AdamWSettings& s) {
    const double clip = clip_factor(squared_norm, s.max_norm);
    for (const AdamWItem& item : items) {
        const AdamWFactors factors = adamw_factors(s, item.weight_decay, clip);
        with_type(item.value.dtype(), [&]<class V>(V) {
            with_type(item.gradient.dtype(), [&]<class G>(G) {
                update(item.value.as<V>(), item.master.as<float>(), item.m.as<float>(),
                       item.v.as<float>(), item.gradient.as<G>(), factors, item.master.numel());
            });
        });
    }
}

}  // namespace ultrascale::ops
