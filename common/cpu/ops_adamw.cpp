// AdamW on the CPU backend, where the device is the host.
#include "ops_common.h"

namespace ultrascale::ops {

void adamw(const std::vector<AdamWItem>& items, const Tensor& squared_norm,
           const AdamWSettings& settings) {
    const AdamWCost cost = adamw_cost(items, settings);
    OpSpan span("adamw", cost.flops, cost.bytes);
    adamw_on_host(items, squared_norm, settings);
}

}  // namespace ultrascale::ops
