#include "comm/nodes.h"

#include <gtest/gtest.h>

namespace ultrascale {
namespace {

// Counts rank by rank what Nodes::spread() gives in closed form: the smallest number of ranks of a
// group that share a node with one of its ranks, over all groups of an axis.
double fewest_on_node(const Nodes& nodes, int ranks, int n, int stride) {
    int fewest = n;
    for (int rank = 0; rank < ranks; ++rank) {
        const int first = rank / (n * stride) * n * stride + rank % stride;
        int together = 0;
        for (int i = 0; i < n; ++i) together += !nodes.between(rank, first + i * stride);
        fewest = std::min(fewest, together);
    }
    return fewest;
}

TEST(Nodes, AnAxisIsSpreadAsItsGroupsAre) {
    for (const int on_node : {1, 2, 3, 4, 6, 8, 12})
        for (const int n : {1, 2, 3, 4, 5, 8, 12, 16})
            for (const int stride : {1, 2, 3, 4, 8}) {
                const Nodes nodes{.ranks = on_node};
                const int ranks = 96 * n * stride / std::gcd(96, n * stride);  // whole groups
                const Spread spread = nodes.spread(n, stride);
                EXPECT_EQ(spread.ranks, n);
                EXPECT_EQ(spread.on_node, fewest_on_node(nodes, ranks, n, stride))
                    << n << " ranks, " << stride << " apart, on nodes of " << on_node;
            }
    EXPECT_FALSE(Nodes{}.spread(8, 4).crosses()) << "without nodes all ranks are on one";
}

// A scheduler may place ranks in any way; here it deals them out in turns.
TEST(Nodes, RanksMayBePlacedAnyhow) {
    const Nodes turns{.ranks = 3, .placed = {0, 1, 0, 1, 0, 1}};
    EXPECT_TRUE(turns.between(0, 1));
    EXPECT_FALSE(turns.between(1, 5));
    for (int rank = 0; rank < 6; ++rank) EXPECT_EQ(turns.index_in_node(rank), rank / 2);
    const Nodes neighbours{.ranks = 3};
    EXPECT_FALSE(neighbours.between(0, 1));
    for (int rank = 0; rank < 6; ++rank) EXPECT_EQ(neighbours.index_in_node(rank), rank % 3);
}

// 8 ranks on two nodes, computed by hand. S = 8000 bytes, so a rank's slice is 1000.
TEST(Nodes, BytesOverACard) {
    const Spread all = Nodes{.ranks = 4}.spread(8, 1), pair = Nodes{.ranks = 4}.spread(2, 4),
                 inside = Nodes{.ranks = 4}.spread(4, 1);
    const auto bytes = [](Collective kind, const Spread& group, Crossing crossing) {
        return bytes_over_card(kind, 8000, group, crossing);
    };
    // A rank sends its slice to each of four ranks; an all-reduce sends it there and back.
    EXPECT_EQ(bytes(Collective::all_gather, all, Crossing::exchange), 4000);
    EXPECT_EQ(bytes(Collective::all_reduce, all, Crossing::exchange), 8000);
    EXPECT_EQ(bytes(Collective::all_to_all, all, Crossing::rings), 4000);
    // A ring passes seven slices from node to node; each of four rings passes a quarter of that.
    EXPECT_EQ(bytes(Collective::reduce_scatter, all, Crossing::ring), 7000);
    EXPECT_EQ(bytes(Collective::reduce_scatter, all, Crossing::rings), 1750);
    EXPECT_EQ(bytes(Collective::all_reduce, all, Crossing::rings), 3500);
    EXPECT_EQ(bytes(Collective::send_recv, all, Crossing::rings), 8000);
    for (const Crossing crossing : {Crossing::rings, Crossing::ring, Crossing::exchange}) {
        EXPECT_EQ(bytes(Collective::all_gather, pair, crossing), 4000);
        for (const Collective kind :
             {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
              Collective::all_to_all, Collective::send_recv})
            EXPECT_EQ(bytes(kind, inside, crossing), 0);
    }
}

}  // namespace
}  // namespace ultrascale
