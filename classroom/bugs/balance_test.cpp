// Exercise 04.b4: the work of the ranks that share a sequence.
#include <gtest/gtest.h>

#include "04_context_parallel/2_zigzag.h"

namespace ultrascale {
using namespace ultrascale::context_parallel;
namespace {

TEST(Balance, IsChecked) {
    // exercise 04.b4 begin: all ranks see equally many pairs
    const int64_t n = 4;
    const SequenceCut cut(Layout::zigzag, n, 64);
    std::vector<int64_t> pairs(size_t(n), 0);
    for (int64_t rank = 0; rank < n; ++rank)
        for (int64_t owner = 0; owner < n; ++owner) pairs[size_t(rank)] += cut.pairs(rank, owner);
    for (const int64_t rank_pairs : pairs) EXPECT_EQ(rank_pairs, pairs[0]);
    // exercise 04.b4 end
}

}  // namespace
}  // namespace ultrascale
