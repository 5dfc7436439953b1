// AdamW on the host's threads, in one pass over the parameters: torch.optim.AdamW after
// torch.nn.utils.clip_grad_norm_. The CPU backend's update, and every backend's update of what is
// offloaded to the host.
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

void check_item(const AdamWItem& item) {
    const int64_t n = item.master.numel();
    check(item.value.numel() == n && item.m.numel() == n && item.v.numel() == n &&
              item.gradient.numel() == n,
          "adamw: sizes differ");
    for (const AdamWWritten& w : written(item))
        if (*w.scale) largest_scaled(w.tensor->dtype());
    check(item.value.data() != item.master.data() ||
              item.value_scale.data() == item.master_scale.data(),
          "adamw: a value that is its own master has one scale");
    check(!item.rounding || item.value.dtype() != DType::fp32,
          "adamw: fp32 values are not rounded");
}

}  // namespace

float largest_scaled(DType dtype) {
    if (dtype == DType::fp16) return formats::Fp16::largest();
    check(dtype == DType::e4m3 || dtype == DType::e5m2,
          "adamw: scales are for fp16, e4m3 and e5m2");
    return dtype == DType::e4m3 ? formats::E4m3::largest() : formats::E5m2::largest();
}

float smallest_second_moment(DType dtype) {
    return dtype == DType::fp16   ? formats::Fp16::smallest()
           : dtype == DType::e4m3 ? formats::E4m3::smallest()
           : dtype == DType::e5m2 ? formats::E5m2::smallest()
                                  : 0;
}

bool adamw_is_plain(const std::vector<AdamWItem>& items, const AdamWSettings& settings,
                    DType moments) {
    if (settings.skip) return false;
    for (const AdamWItem& item : items) {
        const DType value = item.value.dtype(), gradient = item.gradient.dtype();
        if (item.master.dtype() != DType::fp32 || item.m.dtype() != moments ||
            item.v.dtype() != moments)
            return false;
        if (dtype_bytes(value) == 1 || dtype_bytes(gradient) == 1 || has_scales(item) ||
            item.gradient_scale || item.rounding || value != items[0].value.dtype() ||
            gradient != items[0].gradient.dtype())
            return false;
    }
    return true;
}

AdamWCost adamw_cost(const std::vector<AdamWItem>& items, const AdamWSettings& settings) {
    check(settings.step >= 1, "adamw: steps count from 1");
    AdamWCost cost;
    for (const AdamWItem& item : items) {
        check_item(item);
        const auto bytes = [](const Tensor& t) { return double(t.bytes()); };
        const double read =
            bytes(item.gradient) + bytes(item.master) + bytes(item.m) + bytes(item.v);
        cost.flops += 15.0 * double(item.master.numel());
        cost.bytes +=
            read * (has_scales(item) ? 2 : 1) + bytes(item.value) + bytes(item.m) + bytes(item.v);
        if (item.value.data() != item.master.data()) cost.bytes += bytes(item.master);
    }
    return cost;
}

void adamw_on_host(const std::vector<AdamWItem>& items, const Tensor& squared_norm,
                   const AdamWSettings& s) {
    if (s.skip && *s.skip.as<int32_t>() != 0) return;
    double clip = 1;
    if (s.max_norm > 0)
        clip = std::min(1.0, s.max_norm / (std::sqrt(*squared_norm.as<double>()) + 1e-6));
    const bool plain = adamw_is_plain(items, s);
    for (const AdamWItem& item : items) {
        const AdamWFactors factors = adamw_factors(s, item.weight_decay, clip);
        if (!plain) {
            adamw_any_on_host(item, factors);
            continue;
        }
        with_type(item.value.dtype(), [&]<class V>(V) {
            with_type(item.gradient.dtype(), [&]<class G>(G) {
                update(item.value.as<V>(), item.master.as<float>(), item.m.as<float>(),
                       item.v.as<float>(), item.gradient.as<G>(), factors, item.master.numel());
            });
        });
    }
}

}  // namespace ultrascale::ops
