// The grid of ranks and sums over its axes, on any number of ranks (part of comm_test).
#include "mesh.h"

#include <gtest/gtest.h>

#include <sstream>

#include "ops.h"

namespace ultrascale {
namespace {

// The world's ranks in the group, in its order.
std::vector<int> members(const Communicator& group) {
    std::vector<int> ranks;
    for (const std::string& text : group.gather_strings(std::to_string(Communicator::world().rank()))) ranks.push_back(std::stoi(text));
    return ranks;
}

TEST(Mesh, NeighboursAreOfTheLastAxis) {
    const Communicator& world = Communicator::world();
    const int n = world.size(), r = world.rank();
    for (int inner = 1; inner <= n; ++inner) {
        if (n % inner != 0) {
            EXPECT_THROW(Mesh(world, {{"dp", n / inner}, {"tp", inner}}), std::logic_error);
            continue;
        }
        const Mesh mesh(world, {{"dp", n / inner}, {"tp", inner}});
        std::vector<int> tp, dp;
        for (int i = 0; i < inner; ++i) tp.push_back(r / inner * inner + i);
        for (int i = 0; i < n / inner; ++i) dp.push_back(r % inner + i * inner);
        EXPECT_EQ(members(mesh.group("tp")), tp);
        EXPECT_EQ(members(mesh.group("dp")), dp);
        EXPECT_EQ(mesh.group("tp").rank(), r % inner);
        EXPECT_EQ(mesh.group("dp").rank(), r / inner);
        EXPECT_EQ(mesh.group("tp").name(), "tp");
    }
    if (n == 8) {
        const Mesh cube(world, {{"pp", 2}, {"dp", 2}, {"tp", 2}});
        EXPECT_EQ(members(cube.group("pp")), (std::vector<int>{r % 4, r % 4 + 4}));
        EXPECT_EQ(members(cube.group("dp")), (std::vector<int>{r / 4 * 4 + r % 2, r / 4 * 4 + r % 2 + 2}));
    }
    EXPECT_THROW(Mesh(world, {{"dp", 2 * n}}), std::logic_error);
}

TEST(Mesh, SumsOverTheNamedAxesOnly) {
    const Communicator& world = Communicator::world();
    const Mesh mesh(world, {{"dp", 1}, {"tp", world.size()}});
    ParameterList list;
    Parameter summed{.name = "a", .shape = {3}, .is_norm = true}, other{.name = "b", .shape = {5}, .is_norm = true};
    summed.summed_over = {"dp", "tp"};
    other.summed_over = {"dp"};
    const Parameter *a = list.add(summed), *b = list.add(other);
    list.allocate_grads(DType::fp32);
    ops::fill(list.flat_grads(), float(world.rank() + 1));
    all_reduce_gradients(list, mesh.group("dp"));  // a group of one
    all_reduce_gradients(list, mesh.group("tp"));
    const int n = world.size();
    EXPECT_EQ(a->grad.to_host<float>(), std::vector<float>(3, float(n * (n + 1) / 2)));
    EXPECT_EQ(b->grad.to_host<float>(), std::vector<float>(5, float(world.rank() + 1)));
}

}  // namespace
}  // namespace ultrascale
