// The moments of a layer's backward, of which one may be the peak of the activations.
#pragma once

#include <functional>

#include "activation_tensors.h"

namespace ultrascale {

// The tensors that a layer's linears keep from the backward of inputs to the backward of weights.
// (A row linear keeps its gathered dy.)
struct KeptForWeights {
    double attention, mlp;
    KeptForWeights(const LocalSizes& s, const TensorBytes& t)
        : attention(t.input + 2 * t.q + 2 * t.kv + t.whole),
          mlp(s.feed_forward ? s.feed_forward->for_weights
                             : t.input + t.up + t.features + t.whole) {}
    double total() const { return attention + mlp; }
};

// A layer's first norm: its input, its output and rstd.
inline double norm_of_attention(const TensorBytes& t) { return t.stream + t.kept_input + t.rstd; }

using Terms = std::vector<std::pair<std::string, double>>;
using AddMoment = std::function<void(const char* when, Terms terms)>;

// Adds them; all layers of `s` recompute alike. `others`: what is held meanwhile of other layers.
void add_layer_moments(const LocalSizes& s, const std::pair<std::string, double>& others,
                       const AddMoment& moment);

}  // namespace ultrascale
