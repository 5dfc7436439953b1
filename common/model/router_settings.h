// How a router chooses experts, according to the model's configuration.
#pragma once

#include <cmath>
#include <cstdint>

namespace ultrascale::ops {

enum class RouterScore { softmax, sigmoid };
struct RouterSettings {
    RouterScore score = RouterScore::softmax;
    int64_t top_k = 2;
    // The experts form `groups` groups of neighbours. A token chooses only within its best
    // top_groups groups; a group's score is the sum of its two best experts' scores (DeepSeek-V3).
    int64_t groups = 1, top_groups = 1;
    bool renormalise = true;  // a token's weights are divided by their sum
    double scaling = 1;       // and multiplied by this
    // The score of an expert whose group is not chosen. With 0, as in a well-known bug, such an
    // expert is chosen before one whose biased score is negative.
    float masked = -INFINITY;

    bool operator==(const RouterSettings&) const = default;
};

}  // namespace ultrascale::ops
