// The moments of a layer's backward, of which one may be the peak of the activations.
#pragma once

#include "latent_activations.h"

namespace ultrascale {

// The tensors that a layer's linears keep from the backward of inputs to the backward of weights.
// (A row linear keeps its gathered dy.)
struct KeptForWeights {
    double attention, mlp;
    KeptForWeights(const LocalSizes& s, const TensorBytes& t)
        : attention(s.latent ? LatentBytes(s, t).for_weights(t)
                             : t.input + 2 * t.q + 2 * t.kv + t.whole),
          mlp(s.feed_forward ? s.feed_forward->for_weights
                             : t.input + t.up + t.features + t.whole) {}
    double total() const { return attention + mlp; }
};

// A layer's first norm: its input, its output and rstd.
inline double norm_of_attention(const LocalSizes& s, const TensorBytes& t) {
    return t.stream + (s.latent ? LatentBytes(s, t).x : t.kept_input) + t.rstd;
}

// Adds them; all layers of `s` recompute alike. `others`: what is held meanwhile of other layers.
void add_layer_moments(const LocalSizes& s, const std::pair<std::string, double>& others,
                       const AddMoment& moment);

}  // namespace ultrascale
