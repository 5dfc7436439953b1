// Where a model is cut, so that every stage costs about the same.
//
//     embedding | layer 0 ... layer L-1 | norm, head         cost 0 | 1 each | V h / (a layer's)
//     |----- stage 0 -----|--- 1 ---|-- 2 --|-- stage 3 --|
//
// Layers cannot be cut, and the slowest stage sets the pace. So stages are cut by cost and not by
// number of layers: Llama-3-8B's output head has the weights of 2.4 layers, and costs about 2.2, so
// the last stage gets fewer layers. The embedding is a look-up and costs nothing.
#pragma once

#include <limits>

#include "2_schedules/simulate.h"
#include "3_stages.h"
#include "model/step_shape.h"

namespace ultrascale::pipeline {

// FLOPs per token of a layer, separated into the parts that a schedule can split. A linear takes
// two FLOPs for each weight in forward, in the gradient of its input and in the gradient of its
// weight. Attention has no weights; half of its T x T scores are masked. Its backward consists of
// 2.5 times as many products as its forward if it computes the scores again (flash), otherwise of
// twice as many.
inline StageCost layer_cost(const StepShape& shape, int64_t layer = 0) {
    const LlamaConfig& c = shape.config;
    const Recompute::Kind recompute = shape.model.recompute.of(layer);
    const double h = double(c.hidden), products = 2 * h * double(2 * c.q_size() + 2 * c.kv_size()) +
                                                  2 * h * double(c.ffn_matrices() * c.ffn);
    const double attention = 2 * double(c.q_size()) * double(shape.seq);
    const bool again =
        shape.model.attention == AttentionKind::flash || recompute == Recompute::selective;
    StageCost cost{products + attention, products + (again ? 2.5 : 2) * attention, products};
    if (recompute == Recompute::full) cost.backward_input += cost.forward;
    return cost;
}
inline StageCost head_cost(const StepShape& shape) {
    const double product = 2 * double(shape.config.hidden) * double(shape.config.vocab);
    return {product, product, product};
}
inline StageCost stage_cost(const StepShape& shape, const Stage& stage) {
    StageCost cost = stage.head ? head_cost(shape) : StageCost{0, 0, 0};
    for (int64_t i = stage.first_layer; i < stage.last_layer; ++i) {
        const StageCost layer = layer_cost(shape, i);
        cost.forward += layer.forward;
        cost.backward_input += layer.backward_input, cost.backward_weight += layer.backward_weight;
    }
    return cost;
}
inline double total(const StageCost& cost) {
    return cost.forward + cost.backward_input + cost.backward_weight;
}

// --split auto: among all ways to cut, one whose most expensive stage is cheapest; among those, the
// most even one. It is found by dynamic programming over (stages, layers): best[s][l] is for s
// stages that hold the first l layers.
inline std::vector<int64_t> cut_by_cost(const StepShape& shape, int stages) {
    const int64_t L = shape.config.layers;
    const double head = total(head_cost(shape));
    std::vector<double> layers_before{0};  // the cost of the first l layers
    for (int64_t l = 0; l < L; ++l)
        layers_before.push_back(layers_before.back() + total(layer_cost(shape, l)));
    // The lowest sum of squares, or the lowest maximum, of costs of at most `limit`.
    const auto best_cut = [&](double limit, bool squared) {
        std::vector<std::vector<double>> best(
            size_t(stages) + 1,
            std::vector<double>(size_t(L) + 1, std::numeric_limits<double>::infinity()));
        std::vector<std::vector<int64_t>> own(best.size(), std::vector<int64_t>(size_t(L) + 1));
        best[0][0] = 0;
        for (int s = 1; s <= stages; ++s)
            for (int64_t l = s; l <= L; ++l)
                for (int64_t n = 1; n <= l; ++n) {
                    const double cost = layers_before[size_t(l)] - layers_before[size_t(l - n)] +
                                        (s == stages ? head : 0),
                                 before = best[size_t(s) - 1][size_t(l - n)];
                    const double with = squared ? before + cost * cost : std::max(before, cost);
                    if (cost > limit || !(with < best[size_t(s)][size_t(l)])) continue;
                    best[size_t(s)][size_t(l)] = with, own[size_t(s)][size_t(l)] = n;
                }
        std::vector<int64_t> layers(static_cast<size_t>(stages));
        for (int64_t s = stages, l = L; s > 0; l -= layers[size_t(--s)])
            layers[size_t(s) - 1] = own[size_t(s)][size_t(l)];
        return std::pair(best[size_t(stages)][size_t(L)], layers);
    };
    const double slowest = best_cut(std::numeric_limits<double>::infinity(), false).first;
    return best_cut(slowest * (1 + 1e-9), true).second;
}

// The stages that --split asks for: "auto", or the number of layers of each stage ("6,5,5"). Throws
// UserError if the model cannot be cut in this way.
inline std::vector<Stage> cut(const StepShape& shape, int stages, const std::string& split) {
    const int64_t L = shape.config.layers;
    if (stages > L)
        user_error("{} stages: the model has only {}, and each stage needs at least one", stages,
                   format_count(L, "layer"));
    if (split == "auto") return stages_of(cut_by_cost(shape, stages));
    std::vector<int64_t> layers;
    bool numbers = true;
    for (size_t at = 0; numbers && at <= split.size();) {
        const size_t end = std::min(split.find(',', at), split.size());
        const std::string one = split.substr(at, end - at);
        numbers =
            !one.empty() && one.size() < 7 && one.find_first_not_of("0123456789") > one.size();
        if (numbers) layers.push_back(std::stoll(one));
        at = end + 1;
    }
    if (!numbers)
        user_error("--split {}: give auto, or the number of layers of each stage, like 6,5,5",
                   split);
    if (int(layers.size()) != stages)
        user_error("--split {}: {}, but this schedule has {}", split,
                   format_count(int64_t(layers.size()), "number"), format_count(stages, "stage"));
    if (std::ranges::min(layers) < 1)
        user_error("--split {}: each stage needs at least one layer", split);
    if (const int64_t sum = std::accumulate(layers.begin(), layers.end(), int64_t(0)); sum != L)
        user_error("--split {}: {}, but the model has {}", split, format_count(sum, "layer"), L);
    return stages_of(layers);
}

}  // namespace ultrascale::pipeline
