// A device that takes no time for anything, but whose cards send one byte per second. So the
// planner's seconds are the bytes over the card of the rank that sends most.
#pragma once

#include "09_5d_parallel/planner/hardware.h"

namespace ultrascale {
using namespace ultrascale::five_d;

inline Hardware only_cards(const Nodes& nodes) {
    constexpr double at_once = 1e300;
    return {.name = "cards",
            .peak = at_once,
            .product_share = 1,
            .fp8_times = 1,
            .attention_forward = 1,
            .attention_backward = 1,
            .memory_rate = at_once,
            .update_rate = at_once,
            .nodes = nodes,
            .inside = {at_once, 0, at_once, 0},
            .between = {1, 0, 1, 0},
            .memory = 80e9};
}

}  // namespace ultrascale
