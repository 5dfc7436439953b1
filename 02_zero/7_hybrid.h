// With --shard-size S only S ranks share a set of shards, and n / S such groups hold copies of them
// (hybrid sharding, HSDP: FSDP's HYBRID_SHARD, https://arxiv.org/abs/2304.11277). If a group is a
// node, what stages 1 to 3 gather and scatter in every micro-batch stays on its fast links; across
// nodes goes one all-reduce of each rank's shard of the gradients a step, under the last backward:
//
//                      node 0                         node 1
//                 rank 0   rank 1                rank 2   rank 3
//     shards       [ 0 ]    [ 1 ]                 [ 0 ]    [ 1 ]     S = 2: the model, twice
//     dp             <-------->                     <-------->       gather, reduce-scatter
//     replica        |         \____________________|__________/     all-reduce of a shard's sum
//                    \______________________________/
//
// The price is memory: what is sharded is divided by S, not by n. A rank of stage 3 sends, in
// elements for Psi parameters, R = n / S groups and A micro-batches
//
//                       inside a node           across nodes
//     --shard-size S    3 A (S-1)/S Psi         2 (R-1)/R Psi / S
//     all n ranks       3 A (S-1)/n Psi         3 A (n-S)/n Psi     if slices go from rank to rank
//
// which for 8 nodes of 8 and A = 1 is 0.22 Psi across nodes instead of 2.6. The stages need not
// know: they shard over the mesh's "dp", which is now a group, and sum over every group that a
// parameter names besides (start_over_replicas and sum_over_replica_groups in 3_zero.h).
#pragma once

#include "3_zero.h"

namespace ultrascale::zero {

// exercise 02.7 begin: the grid of ranks; the groups over which gradients are summed besides
// The axes of `ranks` data-parallel ranks, outermost first. Neighbours share shards.
inline std::vector<Mesh::Axis> data_axes(int ranks, const ZeroOptions& zero) {
    const int S = zero.shard_size;
    if (S == 0 || S == ranks) return {{"dp", ranks}};
    return {{"replica", ranks / S}, {"dp", S}};
}

// Lets gradients be summed over the replicas, too, if the mesh has any. It is called once, before
// the stage is made.
inline void sum_over_replicas(ParameterList& parameters, const Mesh& mesh) {
    if (!mesh.has("replica")) return;
    for (const auto& parameter : parameters) parameter->replica_groups.push_back("replica");
}
// exercise 02.7 end

// Throws UserError if so many data-parallel ranks cannot be divided into such groups.
inline void check_shard_size(const ZeroOptions& zero, int ranks) {
    if (zero.shard_size > 0 && ranks % zero.shard_size != 0)
        user_error("--shard-size {}: it must divide the {} that see different samples",
                   zero.shard_size, format_count(ranks, "rank"));
}

}  // namespace ultrascale::zero
