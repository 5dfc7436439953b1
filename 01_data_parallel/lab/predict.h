// The bytes that each way to sum gradients sends and holds, by formula: Psi parameters on n ranks.
//
//     naive, overlap      an all-reduce a parameter             Psi elements in all
//     bucket              one a bucket                          Psi
//     reduce_dtype        the same in another dtype             Psi; they are held, too
//     ring                2(n-1) sends of Psi/n                 2(n-1)/n Psi; one chunk is held
//     tree                k + 2 log2 n - 1 steps with k chunks  Psi/2 to each neighbour in a tree;
//                                                               a chunk for each is held
//     hierarchical        reduce-scatter and all-gather inside  Psi each
//                         all-reduce across                     Psi/R with R ranks a node
//     diloco              an all-reduce in H steps              Psi in fp32; theta and m are held
#pragma once

#include "lab/predict/estimate.h"
#include "syncs.h"

namespace ultrascale::data_parallel {

// The communication of a ring all-reduce of `count` elements: 2(n-1) send_recv calls. In each
// direction this rank sends every chunk but its own once (reduce-scatter), and every chunk but the
// next rank's once (all-gather).
inline PredictedCommunication::Kind predict_ring_all_reduce(int64_t count, DType dtype, int rank,
                                                            int n, RingDirections directions) {
    if (n == 1) return {};
    const auto sent = [&](int64_t share, int next) {
        const auto chunk = [&](int c) {
            return part_begin(share, c + 1, n) - part_begin(share, c, n);
        };
        return 2 * share - chunk(rank) - chunk(next);
    };
    const std::vector<int64_t> shares = ring_shares(count, directions);
    int64_t elements = sent(shares.front(), (rank + 1) % n);
    if (directions == RingDirections::both) elements += sent(shares.back(), (rank + n - 1) % n);
    const int64_t bytes = elements * dtype_bytes(dtype);
    return {.calls = 2 * (n - 1), .bytes = bytes, .sent = double(bytes)};
}

inline void add_ring(Prediction& prediction, const RingSync& sync, const Communicator& ranks,
                     int64_t parameters, DType gradients) {
    if (ranks.size() == 1) return;
    prediction.communication.add(ranks, Collective::send_recv,
                                 predict_ring_all_reduce(parameters, gradients, ranks.rank(),
                                                         ranks.size(), sync.directions()));
    for (const int64_t share : ring_shares(parameters, sync.directions()))
        prediction.memory.peak_communication +=
            longest_part(share, ranks.size()) * dtype_bytes(gradients);
}

// A double binary tree's all-reduce: every rank makes a call a step, and sends half of the elements
// to each neighbour in each tree.
inline PredictedCommunication::Kind predict_tree_all_reduce(int64_t count, DType dtype, int rank,
                                                            int n, int64_t chunks) {
    if (n == 1) return {};
    const std::vector<TreePlace> places = tree_places(rank, n);
    const int64_t half = part_begin(count, 1, 2),
                  elements = half * int64_t(places[0].neighbours()) +
                             (count - half) * int64_t(places[1].neighbours()),
                  bytes = elements * dtype_bytes(dtype);
    return {.calls = chunks + 2 * tree_depth(n) - 1, .bytes = bytes, .sent = double(bytes)};
}

inline void add_tree(Prediction& prediction, const TreeSync& sync, const Communicator& ranks,
                     int64_t parameters, DType gradients) {
    if (ranks.size() == 1) return;
    prediction.communication.add(
        ranks, Collective::send_recv,
        predict_tree_all_reduce(parameters, gradients, ranks.rank(), ranks.size(), sync.chunks()));
    const std::vector<TreePlace> places = tree_places(ranks.rank(), ranks.size());
    const int64_t half = part_begin(parameters, 1, 2);
    for (int t : {0, 1})
        prediction.memory.peak_communication +=
            int64_t(places[size_t(t)].neighbours()) * dtype_bytes(gradients) *
            longest_part(t == 0 ? half : parameters - half, sync.chunks());
}

inline void add_buckets(Prediction& prediction, const BucketSync& sync, DType wire, bool copied) {
    for (const BucketSync::Bucket& bucket : sync.buckets()) {
        if (bucket.group.size() == 1) continue;
        const int64_t bytes = bucket.elements.size() * dtype_bytes(wire);
        prediction.communication.add(bucket.group, Collective::all_reduce, 1, bytes);
        // The copies are held from a bucket's start to finish(), so in the end there is one for
        // each bucket.
        if (copied) prediction.memory.peak_communication += bytes;
    }
}

inline void add_hierarchical(Prediction& prediction, const HierarchicalSync& sync,
                             const Group& ranks, int64_t width) {
    PredictedCommunication& p = prediction.communication;
    for (const BucketSync::Bucket& bucket : sync.buckets()) {
        const int64_t rest = bucket.elements.size() % sync.inside().size(),
                      bytes = (bucket.elements.size() - rest) * width;
        if (bytes > 0) {
            p.add(sync.inside(), Collective::reduce_scatter, 1, bytes);
            p.add(sync.across(), Collective::all_reduce, 1, bytes / sync.inside().size());
            p.add(sync.inside(), Collective::all_gather, 1, bytes);
        }
        if (rest > 0) p.add(ranks, Collective::all_reduce, 1, rest * width);
    }
}

// Adds what one synchronisation sends (except for sum_over_replica_groups()) and what it holds
// besides the gradients. `gradients` is their dtype; with --estimate they are not allocated.
inline void add_sums(Prediction& prediction, const GradientSync& sync,
                     const ParameterList& parameters, const Mesh& mesh, DType gradients) {
    const Communicator& ranks = mesh.data_group();
    if (const auto* hierarchical = dynamic_cast<const HierarchicalSync*>(&sync))
        add_hierarchical(prediction, *hierarchical, ranks, dtype_bytes(gradients));
    else if (const auto* rounded = dynamic_cast<const ReduceDtypeSync*>(&sync))
        add_buckets(prediction, *rounded, rounded->wire(), true);
    else if (const auto* buckets = dynamic_cast<const BucketSync*>(&sync))
        add_buckets(prediction, *buckets, gradients, false);
    else if (const auto* ring = dynamic_cast<const RingSync*>(&sync))
        add_ring(prediction, *ring, ranks, parameters.local_numel(), gradients);
    else if (const auto* tree = dynamic_cast<const TreeSync*>(&sync))
        add_tree(prediction, *tree, ranks, parameters.local_numel(), gradients);
    else if (!dynamic_cast<const NoSync*>(&sync))
        for (const auto& parameter : parameters)
            prediction.communication.add(data_group(mesh, *parameter), Collective::all_reduce, 1,
                                         parameter->local_numel() * dtype_bytes(gradients));
}

inline int64_t outer_steps(const DiLoCoOptions& options, int64_t steps) {
    return (steps + options.inner_steps - 1) / options.inner_steps;
}
// Adds what DiLoCo holds for this many parameters, and what a whole run of `steps` steps sends (the
// steps differ).
inline void add_diloco(Prediction& run_prediction, const DiLoCoOptions& options, const Group& ranks,
                       int64_t parameters, int64_t steps) {
    const int64_t meetings = outer_steps(options, steps);
    run_prediction.memory.optimizer += 8 * parameters;
    run_prediction.memory.peak_communication += 4 * parameters;
    run_prediction.communication.add(ranks, Collective::all_reduce, meetings,
                                     meetings * 4 * parameters);
}

}  // namespace ultrascale::data_parallel
