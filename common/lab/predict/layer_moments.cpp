#include "layer_moments.h"

#include <algorithm>

namespace ultrascale {

void add_layer_moments(const LocalSizes& s, const std::pair<std::string, double>& others,
                       const AddMoment& moment) {
    const TensorBytes t(s);
    const LayerActivations layer = layer_activations(s);
    const bool full = s.model.recompute == Recompute::full, split = s.split_backward;
    // With a split backward: what the linears behind the current one keep for their weights, and
    // dy, gathered or after dropout, which a row linear keeps as well.
    const KeptForWeights for_weights(s, t);
    const double mlp_for_weights = split ? for_weights.mlp : 0, o_for_weights = split ? t.q : 0,
                 dy_for_weights = !split        ? 0
                                  : s.gathers() ? t.gathered
                                                : t.dropped;
    const std::pair<std::string, double> last{"what forward kept of the last layer",
                                              layer.total() - t.mask - t.kept_up + t.up};
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
        add_latent_moments(s, t,
                           {others,
                            {"of the last layer: the first norm", norm},
                            {"what the linears behind keep for their weights", mlp_for_weights},
                            t.stream + t.gathered + t.dropped,
                            dy_for_weights},
                           moment);
        return;
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
}

}  // namespace ultrascale
