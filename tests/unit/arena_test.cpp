// The memory of recordings: parts are reused as soon as they are free, and never overlap.
#include "core/arena.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

namespace ultrascale {
namespace {

class ArenaTest : public testing::Test {
protected:
    std::vector<std::unique_ptr<char[]>> blocks;
    int64_t limit = INT64_MAX;
    Arena arena{[this](int64_t bytes) -> void* {
                    if (arena.held() + bytes > limit) return nullptr;
                    return blocks.emplace_back(new char[size_t(bytes)]).get();
                },
                4096};
};

TEST_F(ArenaTest, ReusesAndJoinsWhatWasFreed) {
    void *a = arena.allocate(1000), *b = arena.allocate(1000), *c = arena.allocate(2048);
    EXPECT_EQ(arena.held(), 4096);  // 1024 + 1024 + 2048
    EXPECT_EQ(static_cast<char*>(b) - static_cast<char*>(a), 1024);
    EXPECT_TRUE(arena.free(a));
    EXPECT_FALSE(arena.free(a));  // no longer in use
    EXPECT_EQ(arena.allocate(700), a);
    arena.free(a), arena.free(c), arena.free(b);  // b joins its neighbours on both sides
    EXPECT_EQ(arena.allocate(4096), a);
    EXPECT_EQ(arena.held(), 4096);
    EXPECT_EQ(arena.most_used(), 4096);
    int other;
    EXPECT_FALSE(arena.free(&other));
}

TEST_F(ArenaTest, TakesTheSmallestPartThatIsLargeEnough) {
    void *a = arena.allocate(2048), *b = arena.allocate(256), *c = arena.allocate(512),
         *d = arena.allocate(256);
    arena.free(a), arena.free(c);
    EXPECT_EQ(arena.allocate(512), c);
    EXPECT_EQ(arena.allocate(1100), a);  // 1024 are left at the end
    arena.free(b), arena.free(d);
}

TEST_F(ArenaTest, LargeRequestsGetBlocksOfTheirOwnUntilNoneAreLeft) {
    EXPECT_NE(arena.allocate(10000), nullptr);
    EXPECT_EQ(arena.held(), 10240);
    limit = 12000;
    EXPECT_EQ(arena.allocate(100), nullptr);  // a block of 4096 would be one too many
    EXPECT_EQ(arena.held(), 10240);
}

TEST_F(ArenaTest, PartsInUseNeverOverlap) {
    std::mt19937 random(1);
    std::map<char*, int64_t> in_use;  // address, bytes
    for (int i = 0; i < 5000; ++i) {
        if (in_use.size() > 30 || (!in_use.empty() && random() % 2)) {
            auto it = std::next(in_use.begin(), std::ptrdiff_t(random() % in_use.size()));
            ASSERT_TRUE(arena.free(it->first));
            in_use.erase(it);
            continue;
        }
        const auto bytes = int64_t(random() % 3000 + 1);
        auto* data = static_cast<char*>(arena.allocate(bytes));
        const auto next = in_use.lower_bound(data);
        if (next != in_use.end()) {
            ASSERT_LE(data + bytes, next->first);
        }
        if (next != in_use.begin()) {
            ASSERT_LE(std::prev(next)->first + std::prev(next)->second, data);
        }
        in_use[data] = bytes;
    }
    EXPECT_LE(arena.most_used(), arena.held());
    EXPECT_LE(arena.held(), 31 * 4096);
}

}  // namespace
}  // namespace ultrascale
