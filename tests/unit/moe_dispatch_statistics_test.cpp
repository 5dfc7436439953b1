// The number of rows that --dispatch rank is expected to send, compared with choices drawn at
// random.
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

#include "06_expert_parallel/lab/predict.h"

namespace ultrascale {
using namespace ultrascale::expert_parallel;
namespace {

constexpr int experts = 16, k = 4, ep = 8, node_size = 2, tokens = 6000;

ExpertsConfig sizes() {
    ExpertsConfig e;
    e.count = experts, e.router.top_k = k;
    return e;
}

// Counts the rows of a hop to ranks and of a hop to nodes, when each token's router chooses among
// the experts of `nodes` nodes drawn at random.
std::pair<int, int> drawn_rows(int nodes) {
    constexpr int all_nodes = ep / node_size, experts_per_node = experts / all_nodes;
    std::mt19937 generator(5);
    std::vector<int> node(all_nodes);
    std::iota(node.begin(), node.end(), 0);
    int to_ranks = 0, to_nodes = 0;
    for (int t = 0; t < tokens; ++t) {
        std::ranges::shuffle(node, generator);
        std::vector<int> open;
        for (int n = 0; n < nodes; ++n)
            for (int i = 0; i < experts_per_node; ++i)
                open.push_back(node[size_t(n)] * experts_per_node + i);
        std::ranges::shuffle(open, generator);
        std::set<int> ranks, its_nodes;
        for (int j = 0; j < k; ++j)
            ranks.insert(open[size_t(j)] / (experts / ep)),
                its_nodes.insert(open[size_t(j)] / experts_per_node);
        to_ranks += int(ranks.size()), to_nodes += int(its_nodes.size());
    }
    return {to_ranks, to_nodes};
}

TEST(MoeTraffic, OneCopyForEachRank) {
    ExpertOptions o;
    o.ep = ep, o.dispatch = Dispatch::rank;
    const auto [to_ranks, to_nodes] = drawn_rows(ep / node_size);
    const auto stages = balanced_stages(sizes(), o, tokens);
    ASSERT_EQ(stages.size(), 1u);
    EXPECT_NEAR(double(stages[0].left), to_ranks, 0.01 * to_ranks);
    EXPECT_EQ(stages[0].arrived, stages[0].left);
    EXPECT_EQ(stages[0].most, tokens * ep);
    // Seven in eight of them leave the rank.
    EXPECT_NEAR(expected_rows_away(sizes(), o, tokens), to_ranks * 7.0 / 8, 0.01 * to_ranks);
}

TEST(MoeTraffic, OneCopyForEachNode) {
    for (const int nodes : {2, 3}) {
        ExpertOptions o;
        o.ep = ep, o.dispatch = Dispatch::rank, o.max_nodes = nodes, o.node_size = node_size;
        const auto [to_ranks, to_nodes] = drawn_rows(nodes);
        const auto stages = balanced_stages(sizes(), o, tokens);
        ASSERT_EQ(stages.size(), 2u);
        EXPECT_NEAR(double(stages[0].left), to_nodes, 0.01 * to_nodes);
        EXPECT_NEAR(double(stages[1].left), to_ranks, 0.01 * to_ranks);
        EXPECT_EQ(stages[1].most, stages[0].arrived * node_size);
    }
}

// With one rank for each expert, every choice is a copy; with one rank for all, a token is one
// copy.
TEST(MoeTraffic, TheEnds) {
    EXPECT_DOUBLE_EQ(ranks_of_token(16, 4, 16), 4);
    EXPECT_DOUBLE_EQ(ranks_of_token(16, 4, 1), 1);
    EXPECT_NEAR(ranks_of_token(8, 2, 2), 11.0 / 7, 1e-12);
}

}  // namespace
}  // namespace ultrascale
