// The activations that a rank holds at once, by formula: one formula for every technique. It sees
// nothing but the rank's own sizes; a technique says in LocalSizes what share of a layer and of the
// tokens the rank has.
//
//     forward  |==== kept of layer 1 ====|==== of layer 2 ====| ... |==== of layer L ====| head
//     backward |==== kept of layer 1 ====| ... | what the backward of the layer at work makes |
//
// A step holds the most where forward ends and backward begins: what forward kept of all layers,
// and beside it what the moment itself needs. Which moment that is depends on the sizes (a large
// vocabulary: the loss; a large F: SwiGLU), so each has its terms here and the largest counts.
// Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models".
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/llama.h"

namespace ultrascale {

// What a rank computes with. "Stream": the residual stream between the linears' regions, with its
// norms and dropout. "Region": inside, from a column linear's input to a row linear's output.
struct LocalSizes {
    ModelOptions model;  // dtype, attention, recomputation, chunks of the loss, dropout

    // Its share of the model. `hidden` is the whole row of the stream, heads to vocabulary what the
    // rank has of them.
    int64_t layers;
    bool embedding = true, head = true;
    int64_t hidden, heads, kv_heads, head_dim, features, vocabulary;

    // Its share of a micro-batch of so many sequences of `seq` tokens: of each sequence that many
    // tokens of the stream, and inside a region. Sequence parallelism has fewer in the stream, and
    // gathers; context parallelism has fewer in both.
    int64_t sequences, seq, stream_tokens, region_tokens;
    // In flight: their forward has run, their backward has not ended. A pipeline keeps several.
    int64_t micro_batches = 1;

    // What the technique does otherwise than a plain device.
    // A column linear keeps its gathered input for the weight's gradient; else it gathers it again,
    // before the input's gradient is computed or while it is.
    bool keeps_gathered = false, gathers_beside = false;
    int64_t checkpoint_parts = 1;  // full recomputation: ranks that share a layer's kept input
    int64_t loss_parts = 0;  // ranks that exchange 3 numbers a token for the loss; 0: it needs none

    bool gathers() const { return stream_tokens < region_tokens; }
};

// What one layer keeps from its forward to its backward, in bytes. On a plain device, a token, of e
// bytes an element:
//     norms      both norms' inputs, outputs (the linears' inputs) and rstd     4 h e + 2 * 4
//     attention  q, k, v, o                                                     (2 H D + 2 K D) e
//                flash: the log-sum-exp; naive: the row of probabilities        4 H; H T e
//     mlp        gate and up (the input of down is made again from them)        2 F e
struct LayerActivations {
    double norms, attention, mlp;
    double total() const { return norms + attention + mlp; }
};
LayerActivations layer_activations(const LocalSizes& sizes);

// A moment of forward or backward, and what activations consist of then.
struct ActivationMoment {
    std::string when;
    std::vector<std::pair<std::string, double>> terms;  // what, bytes
    double bytes() const;
};
// The moments that can be the highest, for some sizes.
std::vector<ActivationMoment> activation_moments(const LocalSizes& sizes);
// The highest of them; of equal ones the first.
ActivationMoment activation_peak(const LocalSizes& sizes);
int64_t peak_activation_bytes(const LocalSizes& sizes);  // its bytes; at most 9 * 10^18

}  // namespace ultrascale
