// Which rank is on which node, and how much of a call goes over a rank's network card.
//
//        node 0             node 1
//     rank 0   1   2   3     4   5   6   7      between nodes only through cards: of a group of
//          |   |   |   |     |   |   |   |      n ranks m are on a rank's own node, n - m are far
//     =====+===+===+===+=====+===+===+===+===
//
// Of a tensor of S bytes (comm.h) a rank's card sends the following, if each rank has its own card:
//
//     all-gather, reduce-scatter; twice as much in an all-reduce
//         rings       (n-1)/n S / m   NCCL: as many rings as the group has cards in a node, each
//                                     with its part of S; through every card goes one of them
//         ring        (n-1)/n S       one ring in rank order: all of it leaves a node by one card
//         exchange    (n-m)/n S       ours over MPI: from each rank a slice to each other one
//     all-to-all      (n-m)/n S       what is for ranks of other nodes
//     to a neighbour            S     if it is on another node. In a ring of neighbours one rank of
//                                     a node sends to another node, by its own card alone
//
// pretend_nodes(), --calibrate and the planner all use these formulas.
//
// Ranks of a node are always neighbours: Communicator::world() numbers them node by node, however
// the launcher has placed them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "comm.h"

namespace ultrascale {

// How a collective crosses from node to node; see above.
enum class Crossing { rings, ring, exchange };
inline constexpr std::array<const char*, 3> crossing_names = {"rings", "ring", "exchange"};

// A group, as its slowest rank sees it: the one with the fewest others on its node.
struct Spread {
    double ranks;    // n
    double on_node;  // m; n: the group is on one node
    // How many ranks of a node send to another node when every group passes a message to its next
    // rank.
    double senders;
    bool crosses() const { return on_node < ranks; }
};

struct Nodes {
    int ranks = 0;  // of a node, at most; 0: all ranks are on one
    int cards = 0;  // network cards of a node; 0: one for each rank
    Crossing crossing = Crossing::exchange;
    std::vector<int> placed = {};         // the node of each rank; empty: `ranks` a node
    std::vector<std::string> names = {};  // of the nodes; empty: simulated ones have none

    int node_of(int rank) const {
        return !placed.empty() ? placed[size_t(rank)] : ranks > 0 ? rank / ranks : 0;
    }
    // How many ranks before this one are on the same node.
    int index_in_node(int rank) const {
        if (placed.empty()) return ranks > 0 ? rank % ranks : rank;
        return int(std::count(placed.begin(), placed.begin() + rank, node_of(rank)));
    }
    bool between(int a, int b) const { return node_of(a) != node_of(b); }
    int cards_of_node() const { return cards > 0 ? cards : ranks; }
    bool all_equal() const {
        return std::ranges::all_of(
            placed, [this](int node) { return std::ranges::count(placed, node) == ranks; });
    }

    // The spread of a group along an axis of a layout: n ranks, `stride` apart. It is one of many
    // such groups that fill all nodes together, and neighbouring ranks share a node. The result
    // describes the group that the borders between nodes cut worst: of groups of 3 on nodes of 8,
    // one leaves a rank alone on its node.
    Spread spread(int64_t n, int64_t stride) const {
        if (ranks == 0) return {double(n), double(n), 0};
        const int64_t least = std::gcd(n * stride, int64_t(ranks)) / stride;
        return {double(n), double(std::clamp<int64_t>(least, 1, n)),
                double(std::min<int64_t>(stride, ranks))};
    }
};

// The bytes that cross a rank's card in one direction in a call of this kind, on a tensor of S
// bytes, by a group with this spread. Calls with a root are not covered: they give 0.
inline double bytes_over_card(Collective kind, double S, const Spread& group, Crossing crossing) {
    if (!group.crosses()) return 0;
    const double n = group.ranks, m = group.on_node, far = (n - m) / n * S;
    const double once = crossing == Crossing::exchange ? far
                        : crossing == Crossing::ring   ? (n - 1) / n * S
                                                       : (n - 1) / n * S / m;
    switch (kind) {
        case Collective::all_reduce: return 2 * once;
        case Collective::all_gather:
        case Collective::reduce_scatter: return once;
        case Collective::all_to_all: return far;
        case Collective::send_recv: return S;
        default: return 0;
    }
}

// The machines of world()'s ranks, with their hosts' names. Never waits.
const Nodes& machines();
// Whether this rank's group of this name has ranks on several of the nodes.
bool spans_nodes(const std::string& group, const Nodes& nodes);
// The current nodes: simulated ones (pretend_nodes()), or the machines. All ranks of world() call
// it, because `crossing` depends on how they can communicate.
Nodes current_nodes();

}  // namespace ultrascale
