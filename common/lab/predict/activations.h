// The peak of a rank's activations, by one formula for every technique. It depends only on the
// rank's own sizes: a technique sets the rank's share of a layer and of the tokens in LocalSizes.
//
//     forward  |==== kept of layer 1 ====|==== of layer 2 ====| ... |==== of layer L ====| head
//     backward |==== kept of layer 1 ====| ... | what the backward of the layer at work makes |
//
// A step holds the most when forward ends and backward begins: all that forward kept of all layers,
// plus what the operation at that moment needs. Which moment is the highest depends on the sizes
// (with a large vocabulary the loss, with a large F SwiGLU), so each has its terms here and the
// largest counts. Korthikanti et al. 2022, "Reducing activation recomputation in large transformer
// models".
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/llama.h"

namespace ultrascale {

// The bytes that a pass holds in a turn (train/interleave.h): the most, and when it yields or ends.
struct TurnHeld {
    double most, after;
};
using TurnBytes = std::vector<TurnHeld>;
// The most that two passes hold together if they take turns; `other_before`: what the other one
// holds before its first turn.
double peak_of_turns(const TurnBytes& one, const TurnBytes& other, double other_before);

// A layer's feed-forward other than SwiGLU, in bytes. It reads the stream, and does not gather.
struct FeedForwardActivations {
    double kept = 0;            // from forward to backward, in addition to its input
    double for_weights = 0;     // from a backward of inputs to that of weights, with its input
    double forward = 0;         // a forward's peak, including what it keeps
    double forward_alone = 0;   // a forward's peak if it keeps nothing
    double backward = 0;        // a backward's peak, including dy and what forward kept
    double backward_input = 0;  // the peak of a backward of inputs
    TurnBytes forward_turns = {}, backward_turns = {};  // of the same, if they yield
};

// The sizes with which a rank computes. "Stream": the residual stream with its norms and dropout.
// "Region": everything from a column linear's input to a row linear's output.
struct LocalSizes {
    ModelOptions model;  // dtype, attention, recomputation, chunks of the loss, dropout

    // The rank's share of the model; recomputation counts its layers from the first one. `hidden`
    // is the stream's whole row; the sizes from heads to vocabulary are the rank's share.
    int64_t layers;
    bool embedding = true, head = true;
    int64_t hidden, heads, kv_heads, head_dim;
    bool head_norms = false, gpt = false;  // as in LlamaConfig
    LatentConfig latent = {};              // whole sizes; heads and head_dim are given above
    int64_t features, vocabulary;

    // The rank's share of a micro-batch of `sequences` sequences of `seq` tokens: the number of
    // each sequence's tokens in the stream, and inside a region. With sequence parallelism the
    // stream has fewer and is gathered; with context parallelism both have fewer.
    int64_t sequences, seq, stream_tokens, region_tokens;
    // Micro-batches in flight, whose forward has run and whose backward has not ended. A pipeline
    // keeps several.
    int64_t micro_batches = 1;
    // The moments are those of a backward of inputs; a backward of weights follows later.
    bool split_backward = false;

    // Changes by a technique. keeps_gathered: a column linear keeps its gathered input for the
    // weight's gradient; otherwise it gathers the input again, before the input's gradient is
    // computed, or (gathers_beside) at the same time.
    bool keeps_gathered = false, gathers_beside = false;
    int64_t checkpoint_parts = 1;  // full recomputation: ranks that share a layer's kept input
    // Full recomputation: kept inputs are on the host, except for the one that is needed next.
    bool checkpoints_on_host = false;
    int64_t loss_parts = 0;  // ranks that exchange 3 numbers per token for the loss; 0: no exchange
    // The bytes that an attention core holds in addition to a plain core in tiles: kept from
    // forward to backward; at its forward's peak; at its backward's peak (negative if it holds
    // less).
    struct {
        double kept = 0, forward = 0, backward = 0;
    } attention_besides = {};

    std::optional<FeedForwardActivations> feed_forward = {};  // of each layer; empty: SwiGLU

    // The bytes per element in which forward keeps the column linears' inputs, attention's output,
    // and gate and up, if they are not kept in the dtype (8 bits and a part of a scale; 0 if
    // backward computes them again). Gate and up are then restored before their backward.
    std::optional<double> kept_input_bytes = {}, kept_output_bytes = {}, kept_gate_up_bytes = {};
    // down_proj's dy is kept from dX to dW as it came, without being rounded.
    bool keeps_dy = true;

    bool gathers() const { return stream_tokens < region_tokens; }
};

// The bytes that a layer keeps from its forward to its backward. On a plain device, per token, with
// e bytes per element:
//     norms      both norms' inputs, outputs (the linears' inputs) and rstd     4 h e + 2 * 4
//     attention  q, k, v, o                                                     (2 H D + 2 K D) e
//                flash: the log-sum-exp; naive: the row of probabilities        4 H; H T e
//     mlp        gate and up (the input of down is made again from them)        2 F e
// Latent attention keeps other tensors (latent_activations.h). A GPT keeps F e in mlp, and 4 bytes
// more for each norm's mean. ModelOptions::keep_masks adds the dropout's masks, the dropped
// probabilities and GELU's output.
// With full recomputation these are the bytes after the forward was computed again. If layers
// recompute differently, `sizes` are those of the first one.
// kept_input_bytes, kept_output_bytes and kept_gate_up_bytes replace e in the linears' inputs, in
// o, and in mlp; a given feed_forward replaces mlp.
struct LayerActivations {
    double norms, attention, mlp;
    double masks = 0;  // of the stream's two dropouts; those of attention's are in `attention`
    double total() const { return norms + attention + mlp + masks; }
};
LayerActivations layer_activations(const LocalSizes& sizes);

// The bytes that a micro-batch keeps between passes, over all units of these sizes: from forward to
// backward; and, if the backward is split, from the backward of inputs to that of weights. The
// latter are what each linear needs for its weight's gradient, its input and its output's gradient:
// per token and layer (4 h + 2 H D + 2 K D + 3 F) e, more than forward keeps, because the input of
// down has been computed again; for the head its input and the logits' gradient, (h + V) e; for the
// embedding its output's gradient, h e.
struct KeptActivations {
    double after_forward, after_backward_input;
};
KeptActivations kept_activations(const LocalSizes& sizes);
// The peak of a micro-batch's forward, including what it keeps.
double peak_of_forward(const LocalSizes& sizes);

// The bytes of a micro-batch on a device, or on a stage of a pipeline: kept between passes, and
// each pass's peak, including what is kept.
struct StageBytes {
    double after_forward = 0, after_backward_input = 0;
    double at_forward = 0, at_backward = 0, at_backward_input = 0;
    TurnBytes forward_turns = {}, backward_turns = {};  // empty: the passes do not yield
    double most() const { return at_forward > at_backward ? at_forward : at_backward; }
};
StageBytes stage_bytes(LocalSizes sizes);

// A moment of forward or backward, and the activations held at that moment.
struct ActivationMoment {
    std::string when;
    std::vector<std::pair<std::string, double>> terms;  // name, bytes
    double bytes() const;
};
// The moments that can be the peak, depending on the sizes.
std::vector<ActivationMoment> activation_moments(const LocalSizes& sizes);
// The highest moment; if several are equal, the first.
ActivationMoment activation_peak(const LocalSizes& sizes);
int64_t peak_activation_bytes(const LocalSizes& sizes);  // the peak's bytes, at most 9 * 10^18

}  // namespace ultrascale
