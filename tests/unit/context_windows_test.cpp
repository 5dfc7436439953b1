// 04_context_parallel's windows and prefixes: the pairs that they leave, and the keys that then
// need not travel, by formula and counted one by one.
#include <numeric>

#include "04_context_parallel/4_ring_plan.h"
#include "04_context_parallel/lab/ring_traffic.h"
#include "04_context_parallel/lab/ring_work.h"
#include "context_pairs.h"

namespace ultrascale {
using namespace ultrascale::context_parallel;
namespace {

Starts starts_of_window(int64_t seq, int64_t window) {
    Starts starts;
    for (int32_t t = 0; t < seq; ++t) starts.push_back(first_visible(t, 0, window));
    return starts;
}

// Calls f for all cuts of a sequence with a mask, and the first position that each query sees.
void for_each_mask(const std::function<void(Layout, const SequenceCut&, const Starts&)>& f) {
    for_each_cut([&](Layout layout, const SequenceCut& plain) {
        const int64_t T = plain.seq(), L = plain.length();
        for (const int64_t window : {int64_t(0), int64_t(1), int64_t(2), L, L + 1, L + 2, T - 1, T})
            for (const int64_t prefix : {int64_t(0), int64_t(1), std::min(L + 1, T - 1), T - 1}) {
                SCOPED_TRACE(testing::Message() << "window " << window << ", prefix " << prefix);
                f(layout, SequenceCut(layout, plain.ranks(), T, {window, prefix}),
                  starts_of_window(T, window));
            }
    });
}

TEST(Windows, PairsAreThoseOfTheFormula) {
    for_each_mask([](Layout, const SequenceCut& cut, const Starts& starts) {
        double all = 0;
        for (int64_t rank = 0; rank < cut.ranks(); ++rank)
            for (int64_t owner = 0; owner < cut.ranks(); ++owner) {
                const Range keys{0, cut.length()};
                const Pairs pairs = visible(cut, rank, owner, keys, starts.data());
                EXPECT_EQ(cut.pairs(rank, owner), int64_t(pairs.size()));
                for (const auto& blocks :
                     {cut.blocks(rank, owner, keys), cut.chunk_blocks(rank, owner, keys)}) {
                    EXPECT_EQ(through(blocks, cut, rank, starts.data()), pairs);
                    for (const Block& block : blocks)
                        EXPECT_FALSE(through({block}, cut, rank, starts.data()).empty());
                }
                all += double(pairs.size());
            }
        EXPECT_EQ(all, attended_pairs({.window = cut.mask().window, .prefix = cut.mask().prefix},
                                      cut.seq()));
        const std::vector<double> by_rank = pairs_by_rank(cut, nullptr);
        EXPECT_EQ(std::accumulate(by_rank.begin(), by_rank.end(), 0.0), all);
    });
}

// What is planned from the window alone is what a batch's plan becomes from its first positions.
TEST(Windows, TheRingIsPlannedAsForDocuments) {
    for_each_mask([](Layout layout, const SequenceCut& cut, const Starts& starts) {
        if (cut.mask().window == 0) return;
        const Documents documents = documents_of({starts}, cut);
        for (const bool bidirectional : {false, true}) {
            if (bidirectional && (layout != Layout::zigzag || cut.mask().prefix > 0)) continue;
            const RingPlan planned(cut, bidirectional, nullptr),
                batch(cut, bidirectional, &documents);
            EXPECT_EQ(planned.is_uniform(), false);
            ASSERT_EQ(planned.kv_chunks(), batch.kv_chunks());
            for (size_t p = 0; p < planned.kv_chunks(); ++p)
                for (int owner = 0; owner < cut.ranks(); ++owner)
                    EXPECT_EQ(planned.hops(p, owner), batch.hops(p, owner));
        }
    });
}

TEST(Windows, ContiguousPiecesMakeTheHopsOfTheFormula) {
    bool some_stay = false, some_go_all_round = false;
    for_each_mask([&](Layout layout, const SequenceCut& cut, const Starts&) {
        const auto [window, prefix] = cut.mask();
        if (layout != Layout::contiguous || window == 0 || prefix > 0) return;
        const RingPlan plan(cut, false, nullptr);
        const int n = int(cut.ranks()), L = int(cut.length());
        const int h = int(cut.mask().hops(L, n));
        some_stay = some_stay || (n > 2 && h == 0), some_go_all_round |= h > 2 && h == n - 1;
        for (int rank = 0; rank < n; ++rank) {
            EXPECT_EQ(plan.hops(0, rank), std::min(h, n - 1 - rank));
            const bool last = rank == n - 1;
            EXPECT_EQ(traffic_of_keys(plan, rank).tokens, last ? 0 : L * std::min(h, rank + 1));
            // The last rank only sends home; where no key travels, nobody does.
            EXPECT_EQ(traffic_of_gradients(plan, rank).tokens,
                      h == 0 ? 0 : L * (std::min(h, rank) + (last ? 0 : 1)));
        }
    });
    EXPECT_TRUE(some_stay && some_go_all_round);
}

// As the header says: contiguous pieces are balanced; a zig-zag's tails travel n-1 hops, but one
// the other way.
TEST(Windows, AZigzagLosesItsReason) {
    const int64_t n = 8, L = 16, T = n * L, W = L;
    const SequenceCut pieces(Layout::contiguous, n, T, {W, 0}),
        zigzag(Layout::zigzag, n, T, {W, 0});
    EXPECT_DOUBLE_EQ(balance_of(pairs_by_rank(pieces, nullptr)).efficiency(),
                     1 - double(W - 1) / double(2 * T));
    const auto tokens = [&](const RingPlan& plan) {
        int64_t sum = 0;
        for (int rank = 0; rank < n; ++rank) sum += traffic_of_keys(plan, rank).tokens;
        return sum;
    };
    const RingPlan one_way(zigzag, false, nullptr), both_ways(zigzag, true, nullptr);
    EXPECT_EQ(one_way.hops(1, 4), n - 1);
    EXPECT_EQ(tokens(RingPlan(pieces, false, nullptr)), (n - 1) * L);
    // A chunk of L / 2 tokens is needed two chunks on, and both times by the next rank but where
    // the zig-zag turns: the last rank's head goes all the way round to the last but one.
    EXPECT_EQ(tokens(both_ways), (4 * (n - 2) + 2 + (n - 1)) * L / 2);
    EXPECT_GT(tokens(one_way), 4 * (n - 1) * L);
}

// A prefix adds pairs to the first pieces. It takes a zig-zag's balance, but not the stripes'. With
// all tokens in the prefix there is no mask left, and every cut is balanced.
TEST(Windows, APrefixBalancesContiguousPieces) {
    const auto efficiency = [](Layout layout, int64_t prefix) {
        return balance_of(pairs_by_rank({layout, 8, 128, {0, prefix}}, nullptr)).efficiency();
    };
    EXPECT_NEAR(efficiency(Layout::contiguous, 0), 8.0 / 15, 0.01);
    EXPECT_GT(efficiency(Layout::contiguous, 64), 0.65);
    EXPECT_LT(efficiency(Layout::zigzag, 64), 0.9);
    EXPECT_GT(efficiency(Layout::striped, 64), 0.95);
    for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
        EXPECT_DOUBLE_EQ(efficiency(layout, 128), 1);
}

}  // namespace
}  // namespace ultrascale
