// Experts that are placed by load: how many copies each gets, on which ranks they are, how their
// rows are shared, and the file of the loads.
#include <gtest/gtest.h>

#include "06_expert_parallel/12_replicas.h"
#include "06_expert_parallel/lab/loads_file.h"
#include "core/random.h"
#include "tests/test_files.h"

namespace ultrascale {
using namespace ultrascale::expert_parallel;
namespace {

using Copies = std::vector<int64_t>;

TEST(MoePlacement, CopiesByLoad) {
    EXPECT_EQ(copies_by_load({8, 4, 2, 2}, 0, 2), (Copies{1, 1, 1, 1}));
    EXPECT_EQ(copies_by_load({8, 4, 2, 2}, 2, 2), (Copies{2, 2, 1, 1}));
    EXPECT_EQ(copies_by_load({2, 1, 12, 5}, 4, 4), (Copies{1, 1, 4, 2}));
    // A load of 9 is the largest until it has four copies: 9, 4.5, 3, 2.25.
    EXPECT_EQ(copies_by_load({9, 2.5, 2, 1}, 4, 8), (Copies{4, 2, 1, 1}));
    // No expert is twice on a rank, however large its load is; and loads may be 0.
    EXPECT_EQ(copies_by_load({100, 1, 0}, 3, 2), (Copies{2, 2, 2}));
    EXPECT_EQ(copies_by_load({0, 0}, 4, 3), (Copies{3, 3}));
}

// The example of 12_replicas.h, and one in which the only rank with a free slot holds the last
// copy's expert, so that expert 3 moves there.
TEST(MoePlacement, PlacesByHand) {
    using Ranks = std::vector<std::set<int64_t>>;
    EXPECT_EQ(placed({8, 4, 2, 2}, 0, 2).held, (Ranks{{0, 3}, {1, 2}}));
    const Placement p = placed({8, 4, 2, 2}, 2, 2);
    EXPECT_EQ(p.held, (Ranks{{0, 1, 2}, {0, 1, 3}}));
    EXPECT_EQ(p.load, (std::vector<double>{8, 8}));
    EXPECT_EQ(p.slots, (std::vector<std::vector<int32_t>>{{0, 3}, {1, 4}, {2}, {5}}));
    const Placement moved = place({100, 3, 3, 3, 2}, {1, 1, 1, 1, 2}, 2);
    EXPECT_EQ(moved.held, (Ranks{{0, 3, 4}, {1, 2, 4}}));
    EXPECT_EQ(moved.load, (std::vector<double>{104, 7}));
}

// Whatever the loads are: the largest are shared, ranks have equally many slots, no expert is twice
// on one of them, and the sums are right.
TEST(MoePlacement, AnyLoads) {
    const Random random(5, "loads");
    uint64_t draws = 0;
    const auto draw = [&](int64_t below) {
        return int64_t((1 - double(random.uniform(draws++))) * double(below));
    };
    for (int i = 0; i < 300; ++i) {
        const int64_t ranks = 2 + draw(5), each = 1 + draw(5), E = each * ranks - draw(each);
        const int64_t R = (ranks - E % ranks) % ranks + ranks * draw(2);
        if (R > E * (ranks - 1)) continue;
        std::vector<float> load;
        for (int64_t e = 0; e < E; ++e) load.push_back(float(draw(1 << draw(12))));
        const Copies copies = copies_by_load(load, R, ranks);
        ASSERT_EQ(std::reduce(copies.begin(), copies.end()), E + R);
        // Each further copy went to the expert whose copies had the largest load.
        for (size_t e = 0; e < load.size(); ++e)
            for (size_t f = 0; f < load.size() && copies[e] > 1; ++f)
                ASSERT_TRUE(copies[f] == ranks || double(load[e]) / double(copies[e] - 1) >=
                                                      double(load[f]) / double(copies[f]));
        const Placement p = place(load, copies, ranks);
        std::vector<double> sums(size_t(ranks), 0.0);
        for (int64_t e = 0; e < E; ++e) {
            ASSERT_EQ(int64_t(p.slots[size_t(e)].size()), copies[size_t(e)]);
            std::set<int> holders;
            for (const int32_t slot : p.slots[size_t(e)]) {
                holders.insert(p.holder(slot));
                sums[size_t(p.holder(slot))] += load[size_t(e)] / double(copies[size_t(e)]);
            }
            ASSERT_EQ(int64_t(holders.size()), copies[size_t(e)]);
        }
        for (size_t r = 0; r < size_t(ranks); ++r) {
            ASSERT_EQ(int64_t(p.held[r].size()), (E + R) / ranks);
            ASSERT_NEAR(p.load[r], sums[r], 1e-6);
        }
    }
}

// Copies take turns, so that of a rank's rows one gets at most one more than another; each rank
// begins with another copy.
TEST(MoePlacement, CopiesShareRows) {
    const Placement p = placed({8, 4, 2, 2}, 2, 2);
    EXPECT_EQ(slots_of({0, 1, 0, 2, 0, 3, 1}, p, 0), (std::vector<int32_t>{0, 1, 3, 2, 0, 5, 4}));
    EXPECT_EQ(slots_of({0, 1, 0, 2, 0, 3, 1}, p, 1), (std::vector<int32_t>{3, 4, 0, 2, 3, 5, 1}));
}

TEST(MoePlacement, FileOfLoads) {
    const test::TempDir dir;
    const std::string path = dir / "loads";
    write_loads(path,
                {{.by_layer = {{1, 2, 3}, {4, 5, 6}}}, {.by_layer = {{10, 0, 0}, {0, 0, 1}}}});
    EXPECT_EQ(read_loads(path, 2, 3), (std::vector<std::vector<float>>{{11, 2, 3}, {4, 5, 7}}));
    const auto refuses = [&](const char* text, const char* because) {
        write_file(path, text);
        try {
            read_loads(path, 2, 3);
            ADD_FAILURE() << text;
        } catch (const UserError& error) {
            EXPECT_NE(std::string(error.what()).find(because), std::string::npos) << error.what();
        }
    };
    refuses("1 2 3\n", "1 layer");
    refuses("1 2 3\n4 5\n", "line 2");
    refuses("1 2 3\n4 5 -6\n", "line 2");
    refuses("1 2 3\n4 5 6 7\n", "line 2");
    refuses("1 2 3\n4 x 6\n", "line 2");
    refuses("1 2 3\n4 5 nan\n", "line 2");
    refuses("1 2 3\n0 0 0\n", "line 2");
}

}  // namespace
}  // namespace ultrascale
