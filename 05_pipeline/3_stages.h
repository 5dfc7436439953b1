// The stages of a pipeline: consecutive layers of the model, and what a rank has of them.
//
//     embedding | layer 0 ... layer L-1 | norm, head
//     |----- stage 0 -----|--- 1 ---|-- 2 --|-- stage 3 --|
//
// How many layers a stage has is chosen by what they cost (3_cut.h): the slowest one sets the
// pace. Layers stay whole, and so do their matrices: --optimizer muon, which needs them whole,
// works as on one device.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>

#include "2_schedules/schedule.h"
#include "comm/mesh.h"
#include "core/error.h"
#include "model/llama.h"

namespace ultrascale::pipeline {

// Stages with these numbers of layers, in the model's order.
inline std::vector<Stage> stages_of(const std::vector<int64_t>& layers) {
    std::vector<Stage> stages;
    int64_t first = 0;
    for (size_t s = 0; s < layers.size(); ++s) {
        stages.push_back({first, first + layers[s], s == 0, s + 1 == layers.size()});
        first += layers[s];
    }
    return stages;
}

// The stages that a rank holds: a model for each of its chunks, and one list with the parameters of
// all of them. The list is in the model's order; chunk(c) is the schedule's chunk c.
class RankStages {
public:
    // `stages`: all of the model's stages. Gradients will have grad_dtype.
    RankStages(const LlamaConfig& config, const ModelOptions& model, DType grad_dtype,
               const Schedule& schedule, const std::vector<Stage>& stages, int rank,
               const ModuleFactories& factories)
        : chunks_(schedule.chunks[size_t(rank)]), models_(chunks_.size()), grad_dtype_(grad_dtype) {
        for (const size_t c : in_order())
            models_[c] = std::make_unique<Llama>(config, model, factories,
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

// If the model exists twice: the rank that holds the other copies of a rank's stages. Throws
// UserError if that is the rank itself, or several ranks (which a schedule from a file may ask
// for).
inline int other_holder(const Schedule& schedule, int rank) {
    int other = -1;
    const auto locations = schedule.locations();
    for (int s = 0; s < schedule.stages; ++s)
        for (const int copy : {0, 1}) {
            if (locations[size_t(copy)][size_t(s)].rank != rank) continue;
            const int holder = locations[size_t(1 - copy)][size_t(s)].rank;
            if (holder == rank || (other >= 0 && holder != other))
                user_error(
                    "--schedule {}: the copies of rank {}'s stages must all be on one other rank, "
                    "with which it sums their gradients",
                    schedule.name, rank);
            other = holder;
        }
    return other;
}

// Creates the groups of ranks that hold the same parameters: "tied", the first and the last stage,
// if the model's output head is its embedding; "copies", the two ranks that hold a stage of a model
// that exists twice. Their gradients are summed after all others (sum_over_replica_groups). All
// ranks of the mesh call it.
inline void add_holders(Mesh& mesh, const Schedule& schedule, const LlamaConfig& config) {
    const Communicator& pp = mesh.group("pp");
    const auto locations = schedule.locations();
    if (schedule.copies() > 1) {
        const int other = other_holder(schedule, pp.rank());
        mesh.add_copies(
            pp.split(std::min(pp.rank(), other), pp.rank(), "copies", 2, pp.rank() > other));
    } else if (config.tied && locations[0].front().rank != locations[0].back().rank) {
        const auto holds = [&](int rank) {
            return rank == locations[0].front().rank || rank == locations[0].back().rank;
        };
        int index = 0;  // in the group of the two, or of all others
        for (int r = 0; r < pp.rank(); ++r) index += holds(r) == holds(pp.rank());
        mesh.add_copies(pp.split(holds(pp.rank()) ? 0 : 1, pp.rank(), "tied",
                                 holds(pp.rank()) ? 2 : pp.size() - 2, index));
    }
}

}  // namespace ultrascale::pipeline
