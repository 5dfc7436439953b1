// The part of AdamW in any format that both backends share. Private to this folder.
#pragma once

#include <array>

#include "core/ops_adamw.h"
#include "ops_adamw_any.h"

namespace ultrascale::ops {

// The tensors of an item that are written, in the order in which their scales are kept.
inline constexpr int adamw_written = 4;
struct AdamWWritten {
    const Tensor *tensor, *scale;
};
inline std::array<AdamWWritten, adamw_written> written(const AdamWAnyItem& item) {
    return {{{&item.value, &item.value_scale},
             {&item.master, &item.master_scale},
             {&item.m, &item.m_scale},
             {&item.v, &item.v_scale}}};
}
inline bool has_scales(const AdamWAnyItem& item) {
    for (const AdamWWritten& w : written(item))
        if (*w.scale) return true;
    return false;
}
// Returns the largest number of a dtype that has scales.
inline float largest_scaled(DType dtype) {
    if (dtype == DType::fp16) return formats::Fp16::largest();
    check(dtype == DType::e4m3 || dtype == DType::e5m2,
          "adamw: scales are for fp16, e4m3 and e5m2");
    return dtype == DType::e4m3 ? formats::E4m3::largest() : formats::E5m2::largest();
}
// Returns what v becomes instead of zero: the dtype's smallest number, or 0 with fp32's range.
inline float smallest_second_moment(DType dtype) {
    return dtype == DType::fp16   ? formats::Fp16::smallest()
           : dtype == DType::e4m3 ? formats::E4m3::smallest()
           : dtype == DType::e5m2 ? formats::E5m2::smallest()
                                  : 0;
}

inline void check_item(const AdamWAnyItem& item) {
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
inline AdamWCost adamw_any_cost(const std::vector<AdamWAnyItem>& items,
                                const AdamWSettings& settings) {
    check(settings.step >= 1, "adamw: steps count from 1");
    AdamWCost cost;
    for (const AdamWAnyItem& item : items) {
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

// Returns the items in the form of the faster adamw(): fp32 masters, moments of this dtype, no
// scales, one dtype for all values and one for all gradients. Returns none if they are not so.
inline std::vector<AdamWItem> plain_items(const std::vector<AdamWAnyItem>& items, DType moments) {
    std::vector<AdamWItem> plain;
    for (const AdamWAnyItem& item : items) {
        const DType value = item.value.dtype(), gradient = item.gradient.dtype();
        if (item.master.dtype() != DType::fp32 || item.m.dtype() != moments ||
            item.v.dtype() != moments)
            return {};
        if (dtype_bytes(value) == 1 || dtype_bytes(gradient) == 1 || has_scales(item) ||
            item.gradient_scale || item.rounding || value != items[0].value.dtype() ||
            gradient != items[0].gradient.dtype())
            return {};
        plain.push_back(
            {item.value, item.master, item.m, item.v, item.gradient, item.weight_decay});
    }
    return plain;
}

}  // namespace ultrascale::ops
