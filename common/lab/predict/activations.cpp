#include "activations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "latent_activations.h"

namespace ultrascale {
namespace {

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
double norm_of_attention(const LocalSizes& s, const TensorBytes& t) {
    return t.stream + (s.latent ? LatentBytes(s, t).x : t.kept_input) + t.rstd;
}

// The bytes that a layer keeps from forward to backward.
double kept_of_layer(const LocalSizes& s) {
    return s.model.recompute == Recompute::full ? TensorBytes(s).stream / double(s.checkpoint_parts)
                                                : layer_activations(s).total();
}

// The bytes that `layers` layers keep on the device.
double kept_of_layers(const LocalSizes& s, int64_t layers) {
    if (s.checkpoints_on_host) layers = std::min<int64_t>(layers, 1);
    return double(layers) * kept_of_layer(s);
}

int64_t whole_bytes(double bytes) { return std::llround(std::min(bytes, 9e18)); }

}  // namespace

double ActivationMoment::bytes() const {
    double sum = 0;
    for (const auto& [what, bytes] : terms) sum += bytes;
    return sum;
}

LayerActivations layer_activations(const LocalSizes& s) {
    const TensorBytes t(s);
    // Selective recomputation computes the probabilities again.
    const double probabilities =
        s.model.recompute == Recompute::selective ? 0 : t.scores + t.score_masks;
    const std::optional<FeedForwardActivations>& other = s.feed_forward;
    return {
        .norms = norm_of_attention(s, t) + t.stream + t.rstd + (other ? t.stream : t.kept_input),
        .attention = s.attention_besides.kept +
                     (s.latent ? LatentBytes(s, t).kept(s, t)
                               : t.q + t.kept_o + 2 * t.kv + t.lse + t.unnormed + probabilities),
        .mlp = other ? other->kept : t.kept_up + t.gelu,
        .masks = 2 * t.mask};
}

KeptActivations kept_activations(const LocalSizes& s) {
    const TensorBytes t(s);
    const bool chunks = s.model.loss_chunk > 0;
    const double L = double(s.layers);
    KeptActivations kept{kept_of_layers(s, s.layers), L * KeptForWeights(s, t).total()};
    if (s.head) {
        kept.after_forward += t.stream + t.rstd + (chunks ? t.whole : t.input + t.logits);
        kept.after_backward_input += chunks ? 0 : t.input + t.logits;
    }
    kept.after_forward += t.embedding_mask;
    if (s.embedding) kept.after_backward_input += t.stream;
    return kept;
}

double peak_of_forward(const LocalSizes& s) {
    const TensorBytes t(s);
    const bool full = s.model.recompute == Recompute::full;
    // In the last layer: the input of down and its output, and the norm's output if only its
    // gathered copy is kept. Or, if nothing is kept: the highest moment of the MLP, with that
    // output and the attention's.
    double in_layer = t.features - t.gelu + t.whole + t.scattered;
    if (full)
        in_layer =
            std::max({t.up + t.features, t.up + t.gathered, in_layer + t.gelu}) + 2 * t.stream;
    else if (s.keeps_gathered)
        in_layer += t.scattered;
    if (s.feed_forward)
        in_layer = full ? s.feed_forward->forward_alone + 2 * t.stream
                        : s.feed_forward->forward - s.feed_forward->kept;
    if (s.latent)  // its attention may be the highest moment of a layer
        in_layer = std::max(in_layer, norm_of_attention(s, t) + LatentBytes(s, t).in_forward(s) -
                                          (full ? 0 : layer_activations(s).total()));
    if (s.layers == 0) in_layer = s.embedding ? t.stream + t.gathered : 0;
    const double in_layers = kept_of_layers(s, s.layers) + in_layer, before = t.embedding_mask;
    if (!s.head) return before + in_layers;
    LocalSizes one = s;
    one.embedding = false, one.micro_batches = 1;
    return before + std::max(in_layers, activation_moments(one).front().bytes());  // the head's
}

std::vector<ActivationMoment> activation_moments(const LocalSizes& s) {
    const TensorBytes t(s);
    const LayerActivations layer = layer_activations(s);
    const bool full = s.model.recompute == Recompute::full, chunks = s.model.loss_chunk > 0,
               split = s.split_backward;
    const double kept = kept_of_layers(s, s.layers);
    // With a split backward: what the linears behind the current one keep for their weights, and
    // dy, gathered or after dropout, which a row linear keeps as well.
    const KeptForWeights for_weights(s, t);
    const double mlp_for_weights = split ? for_weights.mlp : 0, o_for_weights = split ? t.q : 0,
                 dy_for_weights = !split        ? 0
                                  : s.gathers() ? t.gathered
                                                : t.dropped;

    // Held meanwhile: all that forward kept of other micro-batches, and of this one's other layers.
    // layers.
    const double head_kept =
        s.head ? t.stream + t.rstd + (chunks ? t.whole : t.input + t.logits) : 0;
    const std::pair<std::string, double> in_flight{
        "what forward kept of " + format_count(s.micro_batches - 1, "other micro-batch"),
        double(s.micro_batches - 1) * (kept + head_kept + t.embedding_mask)};
    // The backward of the last micro-batches has already run if that takes more.
    const std::pair<std::string, double> others{
        split ? fmt::format("what the head and {} keep", format_count(s.layers - 1, "other layer"))
              : "what forward kept of " + format_count(s.layers - 1, "other layer") +
                    (full ? ": inputs only" : ""),
        split ? double(s.layers - 1) * std::max(kept_of_layer(s), for_weights.total()) +
                    (s.head ? t.input + t.logits : 0)
              : kept_of_layers(s, s.layers - 1)};
    const std::pair<std::string, double> last{"what forward kept of the last layer",
                                              layer.total() - t.mask - t.kept_up + t.up};

    std::vector<ActivationMoment> moments;
    using Terms = std::vector<std::pair<std::string, double>>;
    const auto moment = [&](const char* when, Terms terms) {
        if (s.micro_batches > 1) terms.insert(terms.begin(), in_flight);
        if (t.embedding_mask > 0)
            terms.push_back({"the mask of the embedding's dropout", t.embedding_mask});
        moments.push_back({when, std::move(terms)});
    };
    if (s.embedding)
        moment("in the embedding", {{"its output", t.stream},
                                    {"the sum over ranks before it is scattered", t.gathered}});

    if (s.head) {
        const std::pair<std::string, double> layers{"what forward kept of all layers", kept};
        const std::pair<std::string, double> norm{"the final norm's input, output and rstd",
                                                  2 * t.stream + t.rstd};
        const std::pair<std::string, double> gathered{"its output, gathered", t.gathered};
        if (chunks) {  // each chunk's dx is computed with its loss
            const double tokens = double(s.sequences) * double(s.region_tokens),
                         part = std::min(double(s.model.loss_chunk), tokens);
            moment("in the output head", {layers,
                                          norm,
                                          gathered,
                                          {"dx", t.whole},
                                          {"logits and losses of a chunk of tokens",
                                           (t.logits + t.losses) / tokens * part}});
        } else {
            moment("in the loss",
                   {layers, norm, gathered, {"logits", t.logits}, {"losses", t.losses}});
            // The losses are freed, and the logits are overwritten with their gradient.
            moment("in the backward of the output head",
                   {layers,
                    {"the final norm's input, rstd and kept output", t.stream + t.rstd + t.input},
                    {"logits, overwritten with their gradient", t.logits},
                    {"dx, or that and the final norm's",
                     split ? std::max(t.column_backward, t.norm_backward) : t.column_backward}});
        }
    }
    if (s.layers == 0) return moments;

    const double norm = norm_of_attention(s, t);
    if (s.attention_besides.forward > 0)
        moment("in the forward of attention",
               {others,
                {"of the last layer: the first norm and attention", norm + layer.attention},
                {"what this attention holds besides", s.attention_besides.forward},
                {"dy, while the forward is computed again", full ? t.stream : 0}});
    if (s.feed_forward) {
        const FeedForwardActivations& f = *s.feed_forward;
        const std::pair<std::string, double> around{"of the last layer: the norms and attention",
                                                    layer.total() - f.kept};
        if (full)
            moment("where a layer's forward has been computed again",
                   {others, around, {"what its feed-forward holds", f.forward}, {"dy", t.stream}});
        moment(
            "in the backward of the feed-forward",
            {others, around, {"what this holds, with dy", split ? f.backward_input : f.backward}});
    } else {
        // Full recomputation runs the layer's whole forward again: everything is kept, down_proj
        // computes y, and dy is held.
        if (full)
            moment("where a layer's forward has been computed again",
                   {others,
                    {"what this layer's forward keeps", layer.total()},
                    {"the input of down_proj, its output, and dy",
                     t.features - t.gelu + t.whole + t.scattered + t.stream},
                    {"the norm's output in addition to its gathered copy",
                     s.keeps_gathered ? t.scattered : 0}});
        // dy is gathered for down_proj; without gathering, dropout makes a copy of it, which stays
        // for down_proj's weight.
        moment(
            s.gpt ? "in the backward of GELU" : "in the backward of SwiGLU",
            {others,
             last,
             {"dy", t.stream + t.gathered + (s.gathers() || !s.keeps_dy ? 0 : t.dropped)},
             {s.gpt ? "d(up)" : "d(gate, up)", t.up},
             {"the gradient of down_proj's input, later overwritten with that input", t.features}});
        moment("in the backward of down_proj", {others,
                                                last,
                                                {"dy", t.stream + t.gathered + t.dropped},
                                                {"the gradient of its input", t.features}});
        // d(gate, up) takes the place of gate and up.
        moment(s.gpt ? "in the backward of up_proj" : "in the backward of gate_proj and up_proj",
               {others,
                {last.first, last.second - t.gelu},
                {"dy", t.stream + dy_for_weights},
                {"dx", t.column_backward},
                {"the input of down_proj, for its weight", split ? t.features : 0}});
    }

    // A backward of inputs has then freed little of the MLP. (When it comes to the first norm, it
    // has freed attention's activations.)
    if (split)
        moment(
            "in the backward of the second norm",
            {others,
             {"of the last layer: the norms and attention", layer.norms + layer.attention + t.mask},
             {"dy", t.stream + (s.feed_forward ? 0 : dy_for_weights)},
             {"what the MLP keeps for its weights, besides its input and dy",
              s.feed_forward ? s.feed_forward->for_weights - t.stream : t.up + t.features},
             {"the norm's dy and dx", t.norm_backward}});

    // The second norm and the MLP are done.
    if (s.latent) {
        for (ActivationMoment& m :
             latent_moments(s, t,
                            {others,
                             {"of the last layer: the first norm", norm},
                             {"what the linears behind keep for their weights", mlp_for_weights},
                             t.stream + t.gathered + t.dropped,
                             dy_for_weights}))
            moment(m.when.c_str(), std::move(m.terms));
        return moments;
    }
    moment("in the backward of o_proj",
           {others,
            {"of the last layer: the first norm and attention", norm + layer.attention},
            {"dy", t.stream + t.gathered + t.dropped},
            {"the gradient of o", t.q},
            {"what the linears behind keep for their weights", mlp_for_weights}});
    moment("in the backward of attention",  // o, the input of o_proj, is freed
           {others,
            {"of the last layer: the first norm, q, k, v and log-sum-exp",
             norm + t.q + 2 * t.kv + t.lse},
            {"q, k and v before the norms of heads", t.unnormed},
            {"probabilities", t.scores + t.score_masks},
            {"dy and the gradient of o", t.stream + dy_for_weights + t.q},
            {"delta", t.lse},
            {"dq, dk, dv", t.q + 2 * t.kv},
            {"what the linears behind keep for their weights", mlp_for_weights + o_for_weights},
            {"what this attention holds besides", s.attention_besides.backward}});
    moment("in the backward of q_proj, k_proj and v_proj",
           {others,
            {"of the last layer: the first norm", norm},
            {"dy", t.stream + dy_for_weights},
            {"dq, dk, dv", t.q + 2 * t.kv},
            {"dx", t.column_backward},
            {"what the linears behind keep for their weights", mlp_for_weights + o_for_weights}});
    return moments;
}

ActivationMoment activation_peak(const LocalSizes& sizes) {
    std::vector<ActivationMoment> moments = activation_moments(sizes);
    if (moments.empty()) return {"never", {}};
    return *std::ranges::max_element(moments, {}, &ActivationMoment::bytes);
}

int64_t peak_activation_bytes(const LocalSizes& sizes) {
    return whole_bytes(activation_peak(sizes).bytes());
}

}  // namespace ultrascale
