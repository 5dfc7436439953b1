// The bytes of a stage's passes, and of passes that take turns.
#include <algorithm>

#include "activations.h"

namespace ultrascale {

double peak_of_turns(const TurnBytes& one, const TurnBytes& other, double other_before) {
    double most = 0, one_holds = 0, other_holds = other_before;
    for (size_t i = 0; i < std::max(one.size(), other.size()); ++i) {
        if (i < one.size())
            most = std::max(most, one[i].most + other_holds), one_holds = one[i].after;
        if (i < other.size())
            most = std::max(most, other[i].most + one_holds), other_holds = other[i].after;
    }
    return most;
}

StageBytes stage_bytes(LocalSizes sizes) {
    const KeptActivations kept = kept_activations(sizes);
    StageBytes bytes{.after_forward = kept.after_forward,
                     .after_backward_input = kept.after_backward_input,
                     .at_forward = peak_of_forward(sizes),
                     .at_backward = activation_peak(sizes).bytes()};
    sizes.split_backward = true;
    bytes.at_backward_input = activation_peak(sizes).bytes();
    return bytes;
}

}  // namespace ultrascale
