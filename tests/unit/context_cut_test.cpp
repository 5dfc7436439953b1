// 04_context_parallel: which tokens each rank holds, and which of the others' tokens they see.
// Everything is compared with a count of single pairs.
#include <set>

#include "04_context_parallel/lab/ring_work.h"
#include "context_pairs.h"

namespace ultrascale {
using namespace ultrascale::context_parallel;
namespace {

TEST(SequenceCut, EachTokenIsOneRanksAndInOrder) {
    for_each_cut([](Layout, const SequenceCut& cut) {
        std::set<int64_t> seen;
        for (int64_t rank = 0; rank < cut.ranks(); ++rank) {
            for (int64_t i = 0; i < cut.length(); ++i) {
                const int64_t at = cut.position(rank, i);
                EXPECT_TRUE(0 <= at && at < cut.seq() && seen.insert(at).second);
                EXPECT_TRUE(i == 0 || cut.position(rank, i - 1) < at);
            }
            for (int64_t position = 0; position <= cut.seq(); ++position) {
                int64_t before = 0;
                for (int64_t i = 0; i < cut.length(); ++i)
                    before += cut.position(rank, i) < position ? 1 : 0;
                EXPECT_EQ(cut.tokens_before(rank, position), before);
            }
        }
        EXPECT_EQ(int64_t(seen.size()), cut.seq());
    });
}

TEST(SequenceCut, AreThoseOfThePicture) {
    const auto owners = [](Layout layout) {
        const SequenceCut cut(layout, 4, 16);
        std::string text(16, ' ');
        for (int64_t rank = 0; rank < 4; ++rank)
            for (int64_t i = 0; i < 4; ++i) text[size_t(cut.position(rank, i))] = char('0' + rank);
        return text;
    };
    EXPECT_EQ(owners(Layout::contiguous), "0000111122223333");
    EXPECT_EQ(owners(Layout::zigzag), "0011223333221100");
    EXPECT_EQ(owners(Layout::striped), "0123012301230123");
}

TEST(SequenceCut, BlocksHoldEveryVisiblePairOnce) {
    for_each_cut([](Layout layout, const SequenceCut& cut) {
        std::vector<Range> parts{{0, cut.length()}};  // a whole rank's keys, and each chunk's
        for (int64_t c = 0; c < cut.chunks(); ++c) parts.push_back(cut.chunk(c));
        for (int64_t rank = 0; rank < cut.ranks(); ++rank)
            for (int64_t owner = 0; owner < cut.ranks(); ++owner)
                for (const Range keys : parts) {
                    const Pairs all = visible(cut, rank, owner, keys, nullptr);
                    const auto blocks = cut.blocks(rank, owner, keys),
                               by_chunk = cut.chunk_blocks(rank, owner, keys);
                    EXPECT_EQ(through(blocks, cut, rank, nullptr), all);
                    EXPECT_EQ(through(by_chunk, cut, rank, nullptr), all);
                    EXPECT_EQ(cut.pairs(rank, owner, {0, cut.length()}, keys, nullptr),
                              int64_t(all.size()));
                    EXPECT_LE(blocks.size(), 1U);
                    if (layout == Layout::striped) continue;
                    for (const auto* some : {&blocks, &by_chunk})
                        for (const Block& block : *some)
                            EXPECT_FALSE(through({block}, cut, rank, nullptr).empty());
                }
    });
}

// One block of a zig-zag's ring costs half of a square, as in the picture.
TEST(SequenceCut, AZigzagsBlocksAreHalfASquare) {
    const SequenceCut cut(Layout::zigzag, 4, 32);
    for (int64_t rank = 0; rank < 4; ++rank)
        for (int64_t owner = 0; owner < 4; ++owner) {
            if (owner == rank) continue;
            const std::vector<Block> blocks = cut.blocks(rank, owner, {0, 8});
            ASSERT_EQ(blocks.size(), 1U);
            EXPECT_FALSE(blocks[0].mask.causal);
            EXPECT_EQ(blocks[0].queries.size() * blocks[0].keys.size(), 8 * 8 / 2);
        }
}

TEST(SequenceCut, PairsOfDocumentsAreCounted) {
    for_each_cut([](Layout, const SequenceCut& cut) {
        const std::vector<Starts> ways = ways_to_fill(cut.seq());
        const Documents documents = documents_of(ways, cut);
        for (size_t b = 0; b < ways.size(); ++b) {
            const int32_t* starts = ways[b].data();
            const std::vector<double> by_rank = pairs_by_rank(cut, starts);
            for (int64_t rank = 0; rank < cut.ranks(); ++rank) {
                int64_t rank_pairs = 0;
                for (int64_t owner = 0; owner < cut.ranks(); ++owner) {
                    const Range keys{0, cut.length()};
                    const Pairs all = visible(cut, rank, owner, keys, starts);
                    EXPECT_EQ(cut.pairs(rank, owner, starts), int64_t(all.size()));
                    const auto blocks = documents.blocks(int64_t(b), rank, owner, keys);
                    EXPECT_EQ(through(blocks, cut, rank, starts), all);
                    for (const Block& block : blocks)
                        EXPECT_FALSE(through({block}, cut, rank, starts).empty());
                    rank_pairs += int64_t(all.size());
                }
                EXPECT_EQ(by_rank[size_t(rank)], double(rank_pairs));
            }
        }
    });
}

TEST(ContextBalance, OfWholeSequences) {
    for (int64_t n = 1; n <= 8; ++n) {
        const int64_t s = 16 * n;
        const double all = double(s) * double(s + 1) / 2;
        for (const double pairs : pairs_by_rank({Layout::zigzag, n, s}, nullptr))
            EXPECT_DOUBLE_EQ(pairs, double(s * s + s) / double(2 * n));
        // The last rank sees the square of all tokens before its own, and a triangle.
        const double t = double(s) / double(n), most = t * double(s - t) + t * (t + 1) / 2;
        EXPECT_DOUBLE_EQ(
            balance_of(pairs_by_rank({Layout::contiguous, n, s}, nullptr)).efficiency(),
            all / double(n) / most);
        EXPECT_NEAR(
            balance_of(pairs_by_rank({Layout::contiguous, n, 10000 * n}, nullptr)).efficiency(),
            double(n) / double(2 * n - 1), 1e-4);
        const double striped =
            balance_of(pairs_by_rank({Layout::striped, n, s}, nullptr)).efficiency();
        EXPECT_DOUBLE_EQ(striped, double(s + 1) / double(s + n));
    }
}

TEST(ContextBalance, OfOneLongDocumentAndEightShortOnes) {
    std::vector<int64_t> lengths(9, 256);
    lengths[0] = 6144;
    const Starts starts = starts_of(lengths);
    const auto efficiency = [&](Layout layout) {
        return balance_of(pairs_by_rank({layout, 8, 8192}, starts.data())).efficiency();
    };
    EXPECT_NEAR(efficiency(Layout::contiguous), 0.415, 0.0005);
    EXPECT_NEAR(efficiency(Layout::zigzag), 0.57, 0.005);
    EXPECT_NEAR(efficiency(Layout::striped), 0.999, 0.0005);
    EXPECT_DOUBLE_EQ(balance_of(pairs_by_document_zigzag(8, 8192, starts.data())).efficiency(),
                     1.0);
}

}  // namespace
}  // namespace ultrascale
