// AdamW with states of any dtype and scales. Private to common/cuda.
#pragma once

#include "core/ops_adamw.h"

namespace ultrascale::ops {

void adamw_any(const std::vector<AdamWItem>& items, const Tensor& squared_norm,
               const AdamWSettings& settings);

}  // namespace ultrascale::ops
