// The chapter's choices, set by its options.
#pragma once

#include <algorithm>
#include <cmath>

#include "model/config.h"

namespace ultrascale::expert_parallel {

inline constexpr const char* aux_names[] = {"hf", "switch", "megatron", "sequence"};
// The tokens over which an auxiliary loss counts: each micro-batch's, or those of the whole step.
enum class AuxOver { micro_batch, global };
// How many copies of a token travel: one for each of its experts (plain: in the plainest way), or
// one for each rank that has some of them.
enum class Dispatch { plain, expert, rank };
inline constexpr const char* dispatch_names[] = {"plain", "expert", "rank"};
// How rows travel to their experts (11_fp8_dispatch.h): in the model's type; in fp8; and gradients
// as well.
enum class DispatchDtype { model, fp8, fp8_both };
inline constexpr const char* dispatch_dtype_names[] = {"model", "fp8", "fp8-both"};
// Which rows an expert drops when it is over its capacity.
enum class Drop { by_position, by_score };
// The work that runs while rows travel: none; in backward, weight gradients of the experts; also
// the shared experts; also, in chunks of tokens, the experts on another chunk; or, besides the
// first two, another micro-batch (10_overlap_batches.h).
enum class ExpertOverlap { none, gradients, shared, chunks, batches };

struct ExpertOptions {
    int ep = 0;  // ranks that share the experts; 0: all
    Dispatch dispatch = Dispatch::expert;
    DispatchDtype dispatch_dtype = DispatchDtype::model;
    Aux aux = Aux::hf;
    double aux_coefficient = 0, z_coefficient = 0;
    AuxOver aux_over = AuxOver::micro_batch;
    double gamma = 0;            // how far a router's bias moves in a step; 0: there is no bias
    double capacity_factor = 0;  // 0: no row is dropped
    Drop drop = Drop::by_position;
    int max_nodes = 0;  // the most nodes that a token goes to; 0: no limit
    int node_size = 0;  // ranks of a node; with max_nodes
    // Choices that no router made: all experts get the same number of rows, but `skew` of all
    // tokens choose expert 0 first.
    bool force_balance = false;
    double skew = 0;
    ExpertOverlap overlap = ExpertOverlap::none;
    int chunks = 2;  // with ExpertOverlap::chunks
    // The loads by which experts are placed on ranks, (layers with experts, E); empty: experts are
    // in order. And how many copies a layer has beside its experts (12_replicas.h).
    std::vector<std::vector<float>> loads = {};
    int replicas = 0;

    bool fp8_rows() const { return dispatch_dtype != DispatchDtype::model; }
    bool fp8_gradients() const { return dispatch_dtype == DispatchDtype::fp8_both; }
    bool forced() const { return force_balance || skew > 0; }
    bool interleaves() const { return overlap == ExpertOverlap::batches && ep > 1; }
    int chunks_here() const { return overlap == ExpertOverlap::chunks && ep > 1 ? chunks : 1; }
    bool placed() const { return !loads.empty(); }
    int64_t slots(const ExpertsConfig& e) const { return e.count + replicas; }  // of a layer
    bool has_loss() const { return aux_coefficient > 0; }
    bool counts_first() const { return has_loss() && aux_over == AuxOver::global; }
};

// The rows that an expert with a capacity accepts of a rank's N tokens.
inline int64_t capacity_of(const ExpertOptions& o, const ExpertsConfig& e, int64_t N) {
    const double mean = double(N) * double(e.router.top_k) / double(e.count);
    return std::max<int64_t>(int64_t(std::ceil(o.capacity_factor * mean - 1e-9)), 1);
}

}  // namespace ultrascale::expert_parallel
