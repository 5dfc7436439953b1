// 01_data_parallel: results that are computed by formula, without a run. The expected figures are
// worked out by hand.
#include <gtest/gtest.h>

#include "01_data_parallel/5_ring_reduce.h"
#include "01_data_parallel/lab/latency_demo.h"
#include "01_data_parallel/lab/planet_demo.h"
#include "01_data_parallel/lab/tree_demo.h"

namespace ultrascale {
using namespace ultrascale::data_parallel;
namespace {

TEST(DataParallelFormulas, ARingsHopsDominateAt512Ranks) {
    const Link link{50e9, 10e-6};
    const RingSeconds few = ring_seconds(8, 64e6, link), many = ring_seconds(512, 64e6, link);
    EXPECT_NEAR(few.transfer, 1.75 * 64e6 / 50e9, 1e-12);
    EXPECT_NEAR(few.hops, 140e-6, 1e-12);
    EXPECT_NEAR(many.hops, 10.22e-3, 1e-9);
    EXPECT_GT(few.share_of_bandwidth(), 0.94);
    EXPECT_LT(many.share_of_bandwidth(), 0.21);
    EXPECT_LT(many.transfer, 2 * 64e6 / 50e9);  // whatever n is
    const double half = ring_break_even(512, link);
    EXPECT_NEAR(half, 256e6, 1);
    EXPECT_NEAR(ring_seconds(512, half, link).share_of_bandwidth(), 0.5, 1e-9);
}

TEST(DataParallelFormulas, APlainRingReduceUsesOneLinkAtATime) {
    EXPECT_DOUBLE_EQ(ring_reduce_seconds(4, 1e9, 1e9, 0), 4);
    EXPECT_DOUBLE_EQ(ring_seconds(4, 1e9, {1e9, 0}).all(), 1.5);
    EXPECT_EQ(ring_reduce_seconds(1, 1e9, 1e9, 1), 0);
}

// Both are trees of log2 n hops, and no rank is an inner node of both.
TEST(DataParallelFormulas, TwoTreesWhoseInnerNodesDiffer) {
    for (int n = 1; n <= 70; ++n) {
        SCOPED_TRACE(n);
        std::vector<std::vector<TreePlace>> places;
        for (int r = 0; r < n; ++r) places.push_back(tree_places(r, n));
        for (size_t t : {0, 1}) {
            int deepest = 0, edges = 0;
            for (int r = 0; r < n; ++r) {
                const TreePlace& place = places[size_t(r)][t];
                EXPECT_LE(place.children.size(), 2u);
                for (int child : place.children) EXPECT_EQ(places[size_t(child)][t].parent, r);
                int at = r, hops = 0;
                while (places[size_t(at)][t].parent >= 0 && hops < n)
                    at = places[size_t(at)][t].parent, ++hops;
                EXPECT_EQ(hops, place.depth);
                deepest = std::max(deepest, hops), edges += int(place.children.size());
            }
            EXPECT_EQ(deepest, tree_depth(n));
            EXPECT_EQ(edges, n - 1);
        }
        for (int r = 0; r < n; ++r)
            EXPECT_TRUE(places[size_t(r)][0].children.empty() ||
                        places[size_t(r)][1].children.empty())
                << r;
    }
    EXPECT_EQ(tree_depth(8), 3);
    EXPECT_EQ(tree_depth(7), 2);
}

TEST(DataParallelFormulas, ATreeIsFasterThanARingUpToASize) {
    const Link link{50e9, 10e-6};
    // One chunk, half of the tensor, crosses 2 log2 512 hops. It takes two messages' time on each
    // but those from and to the root, which has one child.
    EXPECT_NEAR(tree_seconds(512, 1e6, 1, link), 18 * 10e-6 + (2 * 16 + 2) * 0.5e6 / 50e9, 1e-12);
    EXPECT_NEAR(tree_seconds(511, 1e6, 1, link), 16 * (10e-6 + 1e6 / 50e9), 1e-12);
    EXPECT_NEAR(tree_seconds(512, 1e12, 1e6, link), 2e12 / 50e9 + 10, 0.01);
    EXPECT_EQ(best_chunks(512, 1e9, link), std::round(std::sqrt(2 * 7.5 * 1e9 / 50e9 / 10e-6)));
    for (int n : {4, 8, 37, 512}) {
        const double crossing = tree_crossing(n, link);
        EXPECT_GT(crossing, n == 4 ? 1e5 : 1e6);
        for (double bytes : {crossing / 3, crossing * 3})
            EXPECT_EQ(tree_seconds(n, bytes, best_chunks(n, bytes, link), link) <
                          ring_seconds(n, bytes, link).all(),
                      bytes < crossing);
    }
    EXPECT_EQ(tree_crossing(2, link), 0);  // both have two hops and send as much
}

TEST(DataParallelFormulas, Percentiles) {
    const std::vector<double> values = {1, 2, 3, 4, 5};
    EXPECT_EQ(percentile(values, 0), 1);
    EXPECT_EQ(percentile(values, 0.5), 3);
    EXPECT_EQ(percentile(values, 1), 5);
    EXPECT_DOUBLE_EQ(percentile(values, 0.05), 1.2);
    EXPECT_EQ(percentile({7}, 0.95), 7);
}

TEST(DataParallelFormulas, SitesOnARingOf4800Kilometres) {
    const Planet p = parse_planet("params=72e12,sites=24,km=4800,tokens=1e8,flops=2.88e21");
    EXPECT_NEAR(p.light(), 2.0 * 23 / 24 * 0.024, 1e-12);
    EXPECT_NEAR(p.step(), 15, 1e-9);
    // 144 TB, half in each direction, over 750 TB/s
    EXPECT_NEAR(p.all_reduce(2, 750e12), 2.0 * 23 / 24 * (72.0 / 750 + 0.024), 1e-12);
    EXPECT_NEAR(p.idle(15), 0.5, 1e-12);
    const double H = p.inner_for(0.05, 50e9), meeting = p.all_reduce(4, 50e9);
    EXPECT_LE(p.idle(meeting / H), 0.05);
    EXPECT_GT(p.idle(meeting / (H - 1)), 0.05);
    for (const char* wrong : {"params", "params=", "params=-1", "parms=1", "sites=1", "km=nan"})
        EXPECT_THROW(parse_planet(wrong), UserError) << wrong;
    EXPECT_EQ(parse_planet("").params, 72e12);
}

}  // namespace
}  // namespace ultrascale
