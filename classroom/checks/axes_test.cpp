// Exercise 09.1: neighbours along the axes of a grid, and the links that they cross.
#include <gtest/gtest.h>

#include "09_5d_parallel/1_axes.h"

namespace ultrascale {
using namespace ultrascale::five_d;
namespace {

TEST(Axes, StridesFollowTheOrder) {
    Axes axes{.tp = 4, .cp = 1, .ep = 3, .pp = 2};
    axes.complete(48);
    EXPECT_EQ(axes.stride("tp"), 1);
    EXPECT_EQ(axes.stride("cp"), 4);
    EXPECT_EQ(axes.stride("ep"), 4);
    EXPECT_EQ(axes.stride("dp"), 12);
    EXPECT_EQ(axes.stride("pp"), 24);
    axes.set_order("dp,pp,tp,ep,cp");
    EXPECT_EQ(axes.stride("dp"), 1);
    EXPECT_EQ(axes.stride("pp"), 2);
    EXPECT_EQ(axes.stride("tp"), 4);
    EXPECT_EQ(axes.stride("ep"), 16);
    EXPECT_EQ(axes.stride("cp"), 48);
}

// Returns how many consecutive ranks hold a ring of neighbours along the axis. The ring leaves a
// node if that is more than the node has.
int reach(const Axes& axes, const std::string& axis) { return axes.stride(axis) * axes.size(axis); }

TEST(Axes, OnlyTheOuterOnesLeaveANode) {
    Axes axes{.tp = 4};
    axes.complete(8);
    EXPECT_LE(reach(axes, "tp"), 4);
    EXPECT_GT(reach(axes, "dp"), 4);
    axes.set_order("dp,tp,cp,ep,pp");
    EXPECT_GT(reach(axes, "tp"), 4);
    EXPECT_LE(reach(axes, "dp"), 4);
}

}  // namespace
}  // namespace ultrascale
