// The peak of the activations of a micro-batch that runs in halves (6_halves.h). Each half has its
// own peak in one of its turns. What the other half holds meanwhile depends on where its own turn
// ended. So the turns at the top of the model, where both hold the most, are listed, from the end
// of the last layer's forward to the end of its backward, and the two halves walk along that list.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "lab/predict/activation_tensors.h"

namespace ultrascale::tensor_parallel {

// The bytes of a half in its turns. s: the sizes of one half.
inline TurnBytes turns_at_the_top(const LocalSizes& s) {
    const TensorBytes t(s);
    const bool sp = s.gathers(), full = s.model.recompute == Recompute::full;
    const std::vector<ActivationMoment> moments = activation_moments(s);
    const auto most = [&](std::initializer_list<const char*> names) {
        double bytes = 0;
        for (const ActivationMoment& m : moments)
            for (const char* name : names)
                if (m.when == name) bytes = std::max(bytes, m.bytes());
        return bytes;
    };
    LocalSizes layers = s;
    layers.head = false;
    const double kept = kept_activations(layers).after_forward;  // by all layers
    --layers.layers;
    const double others = kept_activations(layers).after_forward;
    const LayerActivations layer = layer_activations(s);
    const double attention = t.stream + t.kept_input + t.rstd + layer.attention;
    const double norm = t.stream + t.rstd, sum = t.whole + t.scattered;  // a sum, and what it is of
    const double tokens = double(s.sequences) * double(s.region_tokens);

    TurnBytes turns;
    const auto turn = [&](double left, double highest = 0) {
        const double found = turns.empty() ? 0 : turns.back().after;
        turns.push_back({std::max({found, highest, left}), left});
    };
    turn(kept + t.features + sum);  // down_proj
    if (sp) turn(kept + norm + t.stream + t.gathered);
    if (s.model.loss_chunk > 0) {
        // One turn a chunk of tokens; the last chunk may be smaller. Of more than three the others
        // repeat.
        const double chunk = std::min(double(s.model.loss_chunk), tokens),
                     chunks = std::ceil(tokens / chunk),
                     missing = (chunks * chunk - tokens) * (t.logits + t.losses) / tokens;
        for (double left = std::min(chunks, 3.0); left > 0; --left)
            turn(most({"in the output head"}) - (left == 1 ? missing : 0));
        turn(kept + norm + sum);
    } else {
        turn(most({"in the loss"}) - 4 * tokens);
        turn(most({"in the backward of the output head"}), most({"in the loss"}));
    }
    if (full) {  // the last layer's forward again
        if (s.checkpoint_parts > 1) turn(kept + t.stream + t.whole);
        if (sp) turn(others + norm + 2 * t.stream + t.gathered);
        if (sp) turn(others + attention - layer.attention + 2 * t.stream + t.q + 2 * t.kv);
        turn(others + attention + t.stream + sum);
        if (sp) turn(others + layer.total() - layer.mlp + t.stream + t.gathered);
        if (sp) turn(others + layer.total() + 2 * t.stream);
        turn(most({"where a layer's forward has been computed again"}));
    }
    if (sp) turn(others + layer.total() + t.stream + t.gathered);
    turn(most({"in the backward of gate_proj and up_proj"}),
         most({"in the backward of SwiGLU", "in the backward of down_proj"}));
    if (sp) turn(others + attention + t.stream + t.gathered);
    turn(most({"in the backward of q_proj, k_proj and v_proj"}),
         most({"in the backward of o_proj", "in the backward of attention"}));
    return turns;
}

// With sequence parallelism the second half is one more turn behind.
inline int64_t peak_of_halves(const LocalSizes& s) {
    const TurnBytes first = turns_at_the_top(s);
    TurnBytes second = first;
    if (s.gathers()) second.pop_back(), second.insert(second.begin(), {0, 0});
    return std::llround(std::min(peak_of_turns(first, second, 0), 9e18));
}

}  // namespace ultrascale::tensor_parallel
