// The activations of a rank's layers, embedding and head in a micro-batch, from those of its layers
// with experts (activations.h): what each pass holds, and what it holds in its turns if another
// micro-batch runs beside it.
#pragma once

#include "activations.h"

namespace ultrascale::expert_parallel {

// Adds the turns of a stage's passes, if they yield where rows travel (experts_layer.h). What a
// layer's experts hold comes on top of its attention and norms, and of the `before` bytes that
// forward keeps of the layers before it.
inline void add_turns(StageBytes& bytes, const std::vector<LocalSizes>& layers,
                      const std::vector<double>& before, const LocalSizes& ends) {
    struct Pass {
        TurnBytes turns = {};
        double most = 0;  // in this turn
        void moment(double bytes) { most = std::max(most, bytes); }
        void end_turn(double after) { turns.push_back({std::exchange(most, 0), after}); }
        void experts(double below, const TurnBytes& of) {
            for (const TurnHeld& turn : of) {
                moment(below + turn.most);
                if (&turn != &of.back()) end_turn(below + turn.after);
            }
        }
    };
    const auto below = [&](size_t i) {
        return before[i] + layer_activations(layers[i]).total() - layers[i].feed_forward->kept;
    };
    Pass forward, backward;
    for (size_t i = 0; i < layers.size(); ++i)
        if (layers[i].feed_forward)
            forward.experts(below(i), layers[i].feed_forward->forward_turns);
        else
            forward.moment(before[i] + peak_of_forward(layers[i]));
    forward.moment(before.back() + peak_of_forward(ends));
    forward.end_turn(bytes.after_forward);
    backward.moment(before.back() + activation_peak(ends).bytes());
    for (size_t i = layers.size(); i-- > 0;) {
        LocalSizes rest = layers[i];
        if (rest.feed_forward) {
            backward.experts(below(i), rest.feed_forward->backward_turns);
            rest.feed_forward->backward = 0;  // then the attention's backward follows
        }
        backward.moment(before[i] + activation_peak(rest).bytes());
    }
    backward.end_turn(0);
    bytes.forward_turns = forward.turns, bytes.backward_turns = backward.turns;
}

// A stage's activations in one micro-batch. `stage`: the sizes of this rank's share of layers from
// `first_layer` on; its layers with experts had these `rows`, by layer.
inline StageBytes stage_activations(const LocalSizes& stage, const StepShape& shape,
                                    const ExpertOptions& o, const DispatchStatistics::ByLayer& rows,
                                    int64_t first_layer = 0) {
    StageBytes bytes;
    std::vector<LocalSizes> layers(size_t(stage.layers), stage);  // one at a time
    std::vector<double> before{0};  // what forward keeps of all layers before each one, and of all
    for (size_t i = 0; i < layers.size(); ++i) {
        LocalSizes& one = layers[i];
        one.layers = 1, one.embedding = one.head = false;
        one.model.recompute = stage.model.recompute.of(int64_t(i));
        if (const auto of = rows.find(first_layer + int64_t(i)); of != rows.end())
            one.feed_forward =
                ExpertActivations(shape, o, stage.sequences * stage.stream_tokens, of->second);
        bytes.at_forward = std::max(bytes.at_forward, before[i] + peak_of_forward(one));
        before.push_back((stage.checkpoints_on_host ? 0 : before[i]) +
                         kept_activations(one).after_forward);
    }
    LocalSizes ends = stage;  // the embedding and the head
    ends.layers = 0;
    const KeptActivations ends_kept = kept_activations(ends);
    bytes.at_forward = std::max(bytes.at_forward, before.back() + peak_of_forward(ends));
    bytes.after_forward = before.back() + ends_kept.after_forward;
    bytes.after_backward_input = ends_kept.after_backward_input;
    add_turns(bytes, layers, before, ends);

    // `behind`: the bytes that later layers and the head keep for their weight gradients.
    const auto backward = [&](LocalSizes sizes, double others, double behind) {
        bytes.at_backward = std::max(bytes.at_backward, others + activation_peak(sizes).bytes());
        sizes.split_backward = true;
        bytes.at_backward_input =
            std::max(bytes.at_backward_input, others + behind + activation_peak(sizes).bytes());
    };
    backward(ends, before.back(), 0);
    ends.embedding = false;
    double behind = kept_activations(ends).after_backward_input;
    for (size_t i = layers.size(); i-- > 0;) {
        backward(layers[i], before[i], behind);
        const double layer_kept = kept_activations(layers[i]).after_backward_input;
        behind += layer_kept, bytes.after_backward_input += layer_kept;
    }
    return bytes;
}

// The peak of a whole model's activations in a step whose micro-batches' layers had these rows.
inline double peak_activations(const StepShape& shape, const ExpertOptions& o,
                               const std::map<int, DispatchStatistics::ByLayer>& rows) {
    double most = 0;
    TurnBytes before;  // of the backward before
    for (const auto& [m, layers] : rows) {
        const StageBytes bytes = stage_activations(local_sizes(shape), shape, o, layers);
        most = std::max(most, bytes.most());
        if (o.interleaves())
            most = std::max(most, peak_of_turns(std::exchange(before, bytes.backward_turns),
                                                bytes.forward_turns, 0));
    }
    return most;
}

}  // namespace ultrascale::expert_parallel
