#include "activations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "latent_activations.h"
#include "layer_moments.h"

namespace ultrascale {
namespace {

// Layers that recompute alike.
struct Alike {
    int64_t first, end;  // [first, end)
    LocalSizes sizes;    // as if all did
};
// Those of the first `layers` layers, from the last to the first.
std::vector<Alike> alike(const LocalSizes& s, int64_t layers) {
    std::vector<Alike> all;
    for (const auto kind : {Recompute::none, Recompute::selective, Recompute::full}) {
        const int64_t n = s.model.recompute.count(kind, layers);
        if (n > 0) all.push_back({layers - n, layers, s}), all.back().sizes.model.recompute = kind;
        layers -= n;
    }
    return all;
}

// The bytes that the first `layers` layers keep on the device from forward to backward.
double kept_of_layers(const LocalSizes& s, int64_t layers) {
    double kept = 0;
    for (const auto& [first, end, sizes] : alike(s, layers)) {
        const bool full = sizes.model.recompute == Recompute::full;
        const int64_t on_device = full && s.checkpoints_on_host ? 1 : end - first;
        kept += double(on_device) * (full ? TensorBytes(s).stream / double(s.checkpoint_parts)
                                          : layer_activations(sizes).total());
    }
    return kept;
}

// "3 other layers: inputs only", "7 other layers, of 3 the input only"
std::string inputs_of(const Recompute& recompute, int64_t layers) {
    const int64_t full = recompute.count(Recompute::full, layers);
    return format_count(layers, "other layer") +
           (full == 0        ? ""
            : full == layers ? ": inputs only"
                             : fmt::format(", of {} the input only", full));
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
        s.model.recompute.of(0) == Recompute::selective ? 0 : t.scores + t.score_masks;
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

// The most that a layer's forward holds besides what it keeps; all layers of `s` recompute alike.
static double forward_of_layer(const LocalSizes& s) {
    const TensorBytes t(s);
    const bool full = s.model.recompute == Recompute::full;
    // The input of down and its output, and the norm's output if only its gathered copy is kept.
    // Or, if nothing is kept: the highest moment of the MLP, with that output and the attention's.
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
    return in_layer;
}

double peak_of_forward(const LocalSizes& s) {
    const TensorBytes t(s);
    double in_layers = s.layers == 0 && s.embedding ? t.stream + t.gathered : 0;
    for (const auto& [first, end, sizes] : alike(s, s.layers))
        in_layers = std::max(in_layers, kept_of_layers(s, end) + forward_of_layer(sizes));
    const double before = t.embedding_mask;
    if (!s.head) return before + in_layers;
    LocalSizes one = s;
    one.embedding = false, one.micro_batches = 1;
    return before + std::max(in_layers, activation_moments(one).front().bytes());  // the head's
}

std::vector<ActivationMoment> activation_moments(const LocalSizes& s) {
    const TensorBytes t(s);
    const bool chunks = s.model.loss_chunk > 0, split = s.split_backward;
    const double kept = kept_of_layers(s, s.layers);

    // Held meanwhile: all that forward kept of other micro-batches, and of this one's other layers.
    const double head_kept =
        s.head ? t.stream + t.rstd + (chunks ? t.whole : t.input + t.logits) : 0;
    const std::pair<std::string, double> in_flight{
        "what forward kept of " + format_count(s.micro_batches - 1, "other micro-batch"),
        double(s.micro_batches - 1) * (kept + head_kept + t.embedding_mask)};
    std::vector<ActivationMoment> moments;
    const AddMoment moment = [&](const char* when, Terms terms) {
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
    // In a layer's backward those before it still keep what their forward kept. If the backward is
    // split, those behind it may keep more than that for their weights, until the first layer.
    for (const auto& [first, end, sizes] : alike(s, s.layers))
        for (const int64_t i : std::set<int64_t>{split ? first : end - 1, end - 1}) {
            const double behind = double(s.layers - 1 - i) * KeptForWeights(s, t).total() +
                                  (s.head ? t.input + t.logits : 0);
            add_layer_moments(
                sizes,
                {split ? "what the head and " + format_count(s.layers - 1, "other layer") + " keep"
                       : "what forward kept of " + inputs_of(s.model.recompute, i),
                 kept_of_layers(s, i) + (split ? behind : 0)},
                moment);
        }
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
