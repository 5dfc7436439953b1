// The stages of a pipeline: the model cut between layers, so that every stage costs about the same.
//
//     embedding | layer 0 ... layer L-1 | norm, head         cost 0 | 1 each | V h / (a layer's)
//     |----- stage 0 -----|--- 1 ---|-- 2 --|-- stage 3 --|
//
// Layers cannot be cut, and the slowest stage sets the pace. So stages are cut by cost and not by
// count: Llama-3-8B's output head has the weights of 2.4 layers, and costs about 2.2; so the last
// stage gets fewer of them. The embedding is a look-up and costs nothing.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>

#include "2_schedules/simulate.h"
#include "comm/mesh.h"
#include "lab/predict/estimate.h"
#include "model/llama.h"

namespace ultrascale::pipeline {

// FLOPs per token, by what a schedule can take apart.
//
// A layer's: two FLOPs for each weight of a linear in forward, in the gradient of its input and in
// that of its weight. Attention has no weights; of its T x T scores half are masked. Its backward
// consists of 2.5 times as many products as its forward if it computes the scores again (flash),
// otherwise of twice as many.
inline StageCost layer_cost(const StepShape& shape) {
    const LlamaConfig& c = shape.config;
    const double h = double(c.hidden), products = 2 * h * double(2 * c.q_size() + 2 * c.kv_size()) +
                                                  2 * h * 3 * double(c.ffn);
    const double attention = 2 * double(c.q_size()) * double(shape.seq);
    const bool again = shape.model.attention == AttentionKind::flash ||
                       shape.model.recompute == Recompute::selective;
    StageCost cost{products + attention, products + (again ? 2.5 : 2) * attention, products};
    if (shape.model.recompute == Recompute::full) cost.backward_input += cost.forward;
    return cost;
}
inline StageCost head_cost(const StepShape& shape) {
    const double product = 2 * double(shape.config.hidden) * double(shape.config.vocab);
    return {product, product, product};
}
inline StageCost stage_cost(const StepShape& shape, const Stage& stage) {
    const StageCost layer = layer_cost(shape), head = head_cost(shape);
    const double layers = double(stage.last_layer - stage.first_layer), heads = stage.head ? 1 : 0;
    return {layers * layer.forward + heads * head.forward,
            layers * layer.backward_input + heads * head.backward_input,
            layers * layer.backward_weight + heads * head.backward_weight};
}
inline double total(const StageCost& cost) {
    return cost.forward + cost.backward_input + cost.backward_weight;
}

// Stages of so many layers each, in the model's order.
inline std::vector<Stage> stages_of(const std::vector<int64_t>& layers) {
    std::vector<Stage> stages;
    int64_t first = 0;
    for (size_t s = 0; s < layers.size(); ++s) {
        stages.push_back({first, first + layers[s], s == 0, s + 1 == layers.size()});
        first += layers[s];
    }
    return stages;
}

// --split auto: of all ways to cut, one whose most expensive stage is cheapest; among those, the
// most even one. Dynamic programming over (stages, layers): best[s][l] is for s stages that hold
// the first l layers.
inline std::vector<int64_t> cut_by_cost(const StepShape& shape, int stages) {
    const int64_t L = shape.config.layers;
    const double layer = total(layer_cost(shape)), head = total(head_cost(shape));
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
                    const double cost = double(n) * layer + (s == stages ? head : 0),
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

// The stages that --split asks for: "auto", or the number of layers of each stage ("6,5,5").
// UserError if the model cannot be cut so.
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

// The stages that a rank holds: a model for each of its chunks, and one list with the parameters of
// all of them. The list is in the model's order; chunk(c) is the schedule's chunk c.
class RankStages {
public:
    RankStages(const StepShape& shape, const Schedule& schedule, const std::vector<Stage>& stages,
               int rank)
        : RankStages(shape, schedule, stages, rank, default_factories(shape.config, shape.model)) {}
    RankStages(const StepShape& shape, const Schedule& schedule, const std::vector<Stage>& stages,
               int rank, const ModuleFactories& factories)
        : chunks_(schedule.chunks[size_t(rank)]),
          models_(chunks_.size()),
          grad_dtype_(shape.grad_dtype) {
        for (const size_t c : in_order())
            models_[c] = std::make_unique<Llama>(shape.config, shape.model, factories,
                                                 stages[size_t(chunks_[c].stage)], &parameters_);
        if (schedule.copies() > 1)
            for (const auto& p : parameters_) p->replica_groups.push_back("copies");
    }
    ParameterList& parameters() { return parameters_; }
    const ParameterList& parameters() const { return parameters_; }
    // The units of all stages, in the model's order.
    std::vector<const Unit*> units() const {
        std::vector<const Unit*> all;
        for (const size_t c : in_order())
            for (const Unit& unit : models_[c]->units()) all.push_back(&unit);
        return all;
    }
    DType grad_dtype() const { return grad_dtype_; }
    int chunks() const { return int(chunks_.size()); }
    int stage(int c) const { return chunks_[size_t(c)].stage; }
    Llama& chunk(int c) { return *models_[size_t(c)]; }

private:
    std::vector<size_t> in_order() const {  // chunks in the model's order
        std::vector<size_t> order(chunks_.size());
        std::iota(order.begin(), order.end(), size_t(0));
        std::ranges::sort(order, {}, [&](size_t c) { return chunks_[c].stage; });
        return order;
    }
    std::vector<Chunk> chunks_;
    ParameterList parameters_;
    std::vector<std::unique_ptr<Llama>> models_;
    DType grad_dtype_;
};

// Where the model exists twice: the rank that holds the other copies of a rank's stages. UserError
// if that is the rank itself, or not one rank (which a schedule from a file may ask for).
inline int other_holder(const Schedule& schedule, int rank) {
    int other = -1;
    const auto places = schedule.places();
    for (int s = 0; s < schedule.stages; ++s)
        for (const int copy : {0, 1}) {
            if (places[size_t(copy)][size_t(s)].rank != rank) continue;
            const int holder = places[size_t(1 - copy)][size_t(s)].rank;
            if (holder == rank || (other >= 0 && holder != other))
                user_error(
                    "--schedule {}: the copies of rank {}'s stages must all be on one other rank, "
                    "with which it sums their gradients",
                    schedule.name, rank);
            other = holder;
        }
    return other;
}

// Makes the groups of ranks that hold the same parameters: "tied", the first and the last stage, if
// the model's output head is its embedding; "copies", the two ranks that hold a stage of a model
// that exists twice. Their gradients are summed after all others (sum_over_replica_groups). All
// ranks of the mesh call it.
inline void add_holders(Mesh& mesh, const Schedule& schedule, const LlamaConfig& config) {
    const Communicator& pp = mesh.group("pp");
    const auto places = schedule.places();
    if (schedule.copies() > 1) {
        const int other = other_holder(schedule, pp.rank());
        mesh.add_copies(
            pp.split(std::min(pp.rank(), other), pp.rank(), "copies", 2, pp.rank() > other));
    } else if (config.tied && places[0].front().rank != places[0].back().rank) {
        const auto holds = [&](int rank) {
            return rank == places[0].front().rank || rank == places[0].back().rank;
        };
        int place = 0;  // among the two, or among all others
        for (int r = 0; r < pp.rank(); ++r) place += holds(r) == holds(pp.rank());
        mesh.add_copies(pp.split(holds(pp.rank()) ? 0 : 1, pp.rank(), "tied",
                                 holds(pp.rank()) ? 2 : pp.size() - 2, place));
    }
}

}  // namespace ultrascale::pipeline
