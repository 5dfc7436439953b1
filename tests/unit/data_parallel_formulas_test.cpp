// 01_data_parallel: results that are computed by formula, without a run. The expected figures are
// worked out by hand.
#include <gtest/gtest.h>

#include "01_data_parallel/5_ring_reduce.h"
#include "01_data_parallel/lab/latency_demo.h"
#include "01_data_parallel/lab/planet_demo.h"

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
