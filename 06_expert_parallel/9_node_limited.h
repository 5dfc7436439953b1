// Nodes are joined by a slower network than the GPUs inside them. So a token chooses its experts on
// at most M nodes (--max-nodes), and its row crosses the network once for each node:
//
//     node 0                      node 1
//     rank 0 (token) ---- 1 ----> rank 2       to the rank of the same number in the other node
//     rank 1                      rank 3 <-2-- and from there to all ranks that need it
//
// The router chooses among groups of experts, and here the groups are nodes (2_route.h). The way
// consists of two stages (8_rank_dispatch.h): across the nodes, with one copy for each node, and
// inside a node, with one copy for each rank. The experts' outputs are first summed inside the
// node, so that one row crosses back. DeepSeek-V3 (arXiv 2412.19437, section 3.2.2): with links of
// 160 and 50 GB/s the second stage is three times as fast, so 3.2 experts on each node cost as much
// as one.
#pragma once

#include "8_rank_dispatch.h"
#include "comm/nodes.h"

namespace ultrascale::expert_parallel {

class NodeHops {
public:
    // `ep` consists of whole nodes of neighbouring ranks. All ranks call it.
    NodeHops(const Communicator& ep, const Nodes& nodes)
        : size_(nodes.ranks),
          across_(ep.split(nodes.index_in_node(ep.rank()), ep.rank(), "across")),
          inside_(ep.split(nodes.node_of(ep.rank()), ep.rank(), "inside")) {}

    std::vector<DispatchStage> stages(int64_t experts_of_rank) const {
        std::vector<DispatchStage> stages;
        stages.emplace_back(across_, experts_of_rank * size_);
        stages.emplace_back(inside_, experts_of_rank);
        return stages;
    }

private:
    int size_;
    Communicator across_, inside_;
};

}  // namespace ultrascale::expert_parallel
