// The grid of ranks and sums over its axes, on any number of ranks (part of comm_test).
#include <gtest/gtest.h>

#include <sstream>

#include "core/ops.h"
#include "train/gradients.h"

namespace ultrascale {
namespace {

// Returns the world ranks of the group's members, in the group's order.
std::vector<int> members(const Communicator& group) {
    std::vector<int> ranks;
    for (const std::string& text :
         group.gather_strings(std::to_string(Communicator::world().rank())))
        ranks.push_back(std::stoi(text));
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
        EXPECT_EQ(members(cube.group("dp")),
                  (std::vector<int>{r / 4 * 4 + r % 2, r / 4 * 4 + r % 2 + 2}));
    }
    EXPECT_THROW(Mesh(world, {{"dp", 2 * n}}), std::logic_error);
}

// n ranks form one axis, of each kind in turn, and a parameter's gradient is r + 1 on rank r.
TEST(Gradients, AreSummedAsTheParametersSay) {
    const Communicator& world = Communicator::world();
    const int n = world.size(), r = world.rank();
    const double mine = r + 1, sum = n * (n + 1) / 2.0;
    struct Case {
        std::vector<std::string> split_over, replica_groups;
        std::map<std::string, double> expected;  // by the axis that the ranks are on
        std::map<std::string, bool> counts = {};
    };
    const bool first = r == 0;
    const Case cases[] = {
        // no description: copied, and summed over every data axis
        {{},
         {},
         {{"dp", sum}, {"cp", sum}, {"ep", sum}, {"tp", mine}, {"pp", mine}},
         {{"dp", true}, {"cp", true}, {"ep", first}, {"tp", first}, {"pp", true}}},
        // a linear under tensor parallelism
        {{"tp"}, {}, {{"dp", sum}, {"tp", mine}}, {{"dp", true}, {"tp", true}}},
        // a norm under sequence parallelism
        {{}, {"tp"}, {{"tp", sum}}, {{"tp", first}}},
        // an expert
        {{"ep"}, {}, {{"ep", mine}, {"dp", sum}, {"cp", sum}}, {{"ep", true}}},
        // copies of a key-value head, and of a tied weight
        {{"tp"}, {"copies"}, {{"tp", sum}}, {{"tp", first}}},
        {{}, {"copies"}, {{"pp", sum}}, {{"pp", first}}},
    };
    for (const Case& c : cases)
        for (const auto& [axis, expected] : c.expected) {
            SCOPED_TRACE(axis);
            Mesh mesh(world, {{axis, n}, {"other", 1}});
            mesh.add_copies(world.split(0, r, "copies"));
            ParameterList list;
            Parameter* p = list.add({.name = "a",
                                     .shape = {3},
                                     .split_over = c.split_over,
                                     .replica_groups = c.replica_groups});
            list.allocate_grads(DType::fp32);
            ops::fill(p->grad, float(mine));
            EXPECT_THROW(sum_gradients(list, mesh),
                         std::logic_error);  // its gradient was never marked complete
            p->complete = true;
            sum_gradients(list, mesh);
            EXPECT_EQ(p->grad.to_host<float>(), std::vector<float>(3, float(expected)));
            // Every rank of dp and cp has the whole sum; along other axes the parts that are
            // counted on each rank are added up.
            const auto wanted = c.counts.find(axis);
            if (wanted != c.counts.end()) {
                EXPECT_EQ(counts(mesh, *p), wanted->second);
            }
        }
}

TEST(Mesh, JointGroupsAreOfSeveralAxes) {
    const Communicator& world = Communicator::world();
    const int n = world.size(), r = world.rank();
    if (n == 1) GTEST_SKIP() << "one rank is a group of its own";
    const Mesh row(world, {{"dp", n}, {"cp", 1}, {"tp", 1}});
    EXPECT_EQ(&row.group({"dp", "cp"}), &row.group("dp"));
    EXPECT_EQ(&row.group({"dp", "no such axis"}), &row.group("dp"));
    EXPECT_EQ(row.group({"cp", "tp"}).size(), 1);
    if (n != 8) return;
    const Mesh cube(world, {{"dp", 2}, {"cp", 2}, {"tp", 2}});
    EXPECT_EQ(members(cube.group({"cp", "dp"})),
              (std::vector<int>{r % 2, r % 2 + 2, r % 2 + 4, r % 2 + 6}));
    EXPECT_EQ(cube.group({"cp", "dp"}).name(), "dp x cp");
    EXPECT_EQ(
        members(cube.group({"dp", "tp"})),
        (std::vector<int>{r / 2 % 2 * 2, r / 2 % 2 * 2 + 1, r / 2 % 2 * 2 + 4, r / 2 % 2 * 2 + 5}));
    EXPECT_EQ(&cube.norm_group(), &cube.group("tp"));
}

}  // namespace
}  // namespace ultrascale
