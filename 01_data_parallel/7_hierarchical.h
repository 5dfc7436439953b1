// --sync hierarchical adds: each bucket (3_buckets.h) is summed in three steps, which send little
// over slow links. Two nodes with cards of 0.05 Gbit/s take 760 ms a step instead of 1260
// (MEASURED.md).
//
// A bucket of C elements, R = 2 ranks a node:
//
//               node 0: rank 0, rank 1            node 1: rank 2, rank 3
//     before      a0 a1     b0 b1                   c0 c1     d0 d1
//   1 reduce-scatter inside the node: each rank gets C / R elements summed
//                 a0+b0     a1+b1                   c0+d0     c1+d1
//   2 all-reduce across nodes, among ranks with the same place in their node: only these travel on
//     the slow links
//                 sum 0     sum 1                   sum 0     sum 1
//   3 all-gather inside the node
//     after       sum 0 1   sum 0 1                 sum 0 1   sum 0 1
//
// With N ranks in M = N / R nodes, a rank sends 2 (M-1)/M * C / R elements out of its node, and all
// network cards of the node work at the same time. An all-reduce that ignores the nodes sends about
// R times as much: 2 (N-1)/N * C through one card if it is a single ring, or 2 (M-1)/M * C through
// every card if all ranks exchange directly (as ours do on the CPU). (On a cluster, NCCL detects
// the cards and lays a ring through each of them.)
//
// The three calls are queued on the communication stream, which runs them in order. If a bucket's
// size is not a multiple of R, a plain all-reduce sums the last few elements (fewer than R). The
// order of additions is not that of one all-reduce, so the last bits differ. The playbook: "Data
// Parallelism", on what limits it at 512 GPUs; Mikami et al. 2018 (2D-torus),
// https://arxiv.org/abs/1811.05233; Jia et al. 2018, https://arxiv.org/abs/1807.11205
#pragma once

#include "3_buckets.h"
#include "comm/nodes.h"

namespace ultrascale::data_parallel {

class HierarchicalSync : public BucketSync {
public:
    // All nodes must have the same number of ranks.
    HierarchicalSync(ParameterList& parameters, const Mesh& mesh, int64_t full, const Nodes& nodes)
        : BucketSync(parameters, mesh, full),
          inside_(ranks_.split(nodes.node_of(ranks_.rank()), ranks_.rank(), "inside the node")),
          across_(ranks_.split(nodes.index_in_node(ranks_.rank()), ranks_.rank(), "across nodes")) {
        for (const Bucket& bucket : buckets_)
            check(&bucket.group == &ranks_,
                  "hierarchical: all gradients are summed over the same ranks");
    }

    const Communicator& inside() const { return inside_; }
    const Communicator& across() const { return across_; }

protected:
    void start(Bucket& bucket, const Tensor& all) override {
        // exercise 01.3 begin: reduce-scatter inside the node, all-reduce across, all-gather
        Stream& stream = communication_stream();
        const int64_t total = all.numel(), share = total / inside_.size(),
                      even = share * inside_.size();
        if (even > 0) {
            const Tensor gradients = all.slice(0, even);
            const Tensor mine =
                gradients.slice(inside_.rank() * share, (inside_.rank() + 1) * share);
            bucket.under_way.push_back(
                inside_.reduce_scatter(mine, gradients, Reduce::sum, stream));
            bucket.under_way.push_back(across_.all_reduce(mine, Reduce::sum, stream));
            bucket.under_way.push_back(inside_.all_gather(gradients, mine, stream));
        }
        if (even < total)
            bucket.under_way.push_back(
                ranks_.all_reduce(all.slice(even, total), Reduce::sum, stream));
        // exercise 01.3 end
    }

private:
    Communicator inside_, across_;
};

}  // namespace ultrascale::data_parallel
