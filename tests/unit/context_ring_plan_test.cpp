// 04_context_parallel: which keys travel round the ring, how far they go, and whether the ranks
// agree on it.
#include <set>

#include "04_context_parallel/4_ring_plan.h"
#include "04_context_parallel/lab/ring_memory.h"
#include "context_pairs.h"

namespace ultrascale {
using namespace ultrascale::context_parallel;
namespace {

// Calls f for all ways to cut whole sequences, and documents, into KV chunks.
void for_each_plan(
    const std::function<void(const SequenceCut&, bool bidirectional, const Documents*)>& f) {
    for_each_cut([&](Layout layout, const SequenceCut& cut) {
        const Documents documents = documents_of(ways_to_fill(cut.seq()), cut),
                        short_ones = documents_of({ways_to_fill(cut.seq()).back()}, cut);
        for (const bool bidirectional : {false, true})
            for (const Documents* of : {(const Documents*)nullptr, &documents, &short_ones})
                if (!bidirectional || layout == Layout::zigzag) f(cut, bidirectional, of);
    });
}

// Carries KV chunks as goes_on() and to() say, and expects that owner() and from() say the same.
// Returns which ranks held a KV chunk, by (KV chunk, owner).
using Visits = std::map<std::pair<size_t, int>, std::vector<int>>;
Visits carried(const RingPlan& plan, int n) {
    Visits visits;
    for (size_t p = 0; p < plan.kv_chunks(); ++p) {
        std::vector<int> held(size_t(n), RingPlan::none);
        for (int rank = 0; rank < n; ++rank) held[size_t(rank)] = plan.owner(p, rank, 0);
        for (int hop = 0; hop <= plan.last_hop() + 1; ++hop) {
            std::vector<int> next(size_t(n), RingPlan::none);
            for (int rank = 0; rank < n; ++rank) {
                const int owner = held[size_t(rank)];
                EXPECT_EQ(plan.owner(p, rank, hop), owner);
                if (owner == RingPlan::none) {
                    EXPECT_FALSE(plan.goes_on(p, rank, hop));
                    continue;
                }
                visits[{p, owner}].push_back(rank);
                EXPECT_EQ(plan.goes_on(p, rank, hop), hop < plan.hops(p, owner));
                if (!plan.goes_on(p, rank, hop)) continue;
                const int to = plan.to(p, rank);
                EXPECT_EQ(plan.from(p, to), rank);
                EXPECT_EQ(next[size_t(to)], RingPlan::none);  // a rank holds one of them
                next[size_t(to)] = owner;
            }
            held = next;
        }
        EXPECT_EQ(held, std::vector<int>(size_t(n), RingPlan::none));
        for (int owner = 0; owner < n; ++owner) {
            const std::vector<int>& ranks = visits[{p, owner}];
            EXPECT_EQ(int(ranks.size()), plan.hops(p, owner) + 1);
            EXPECT_EQ(ranks.back(), plan.end(p, owner));
            EXPECT_EQ(std::set<int>(ranks.begin(), ranks.end()).size(), ranks.size());
        }
    }
    return visits;
}

TEST(RingPlan, SendersAndReceiversAgree) {
    for_each_plan([](const SequenceCut& cut, bool bidirectional, const Documents* documents) {
        const RingPlan plan(cut, bidirectional, documents);
        const int n = int(cut.ranks());
        const Visits there = carried(plan, n);
        for (const auto& [kv_chunk, ranks] : there) EXPECT_EQ(ranks.front(), kv_chunk.second);
        EXPECT_EQ(plan.can_reverse(), n > 1 && !bidirectional && !documents);
        if (!plan.can_reverse()) return;
        const Visits back = carried(plan.reversed(), n);
        for (auto [kv_chunk, ranks] : there) {
            std::ranges::reverse(ranks);
            EXPECT_EQ(back.at(kv_chunk), ranks);  // so it ends at its owner
        }
    });
}

TEST(RingPlan, EveryQueryMeetsAllItsKeysOnce) {
    for_each_plan([](const SequenceCut& cut, bool bidirectional, const Documents* documents) {
        const RingPlan plan(cut, bidirectional, documents);
        for (int64_t b = 0; b < (documents ? documents->batch()->sequences : 1); ++b) {
            const int32_t* starts = documents ? documents->starts(b) : nullptr;
            std::map<std::pair<int, int>, Pairs> met;  // by rank and owner
            for (const auto& [kv_chunk, ranks] : carried(plan, int(cut.ranks())))
                for (const int rank : ranks) {
                    const auto blocks = plan.blocks(kv_chunk.first, rank, kv_chunk.second, b);
                    for (const auto& [pair, times] : through(blocks, cut, rank, starts))
                        met[{rank, kv_chunk.second}][pair] += times;
                }
            for (int rank = 0; rank < cut.ranks(); ++rank)
                for (int owner = 0; owner < cut.ranks(); ++owner)
                    EXPECT_EQ((met[{rank, owner}]),
                              visible(cut, rank, owner, {0, cut.length()}, starts));
        }
    });
}

TEST(RingPlan, TailsSendLessTheFurtherOn) {
    const int n = 8;
    const RingPlan plan(SequenceCut(Layout::zigzag, n, 16 * n), true, nullptr);
    std::vector<double> sent(size_t(n), 0.0);  // a rank's keys and values
    for (size_t p = 0; p < plan.kv_chunks(); ++p)
        for (int rank = 0; rank < n; ++rank)
            for (int hop = 0; hop <= plan.last_hop(); ++hop)
                if (plan.goes_on(p, rank, hop)) sent[size_t(rank)] += double(plan.tokens(p)) / 16;
    EXPECT_EQ(sent, std::vector<double>({3.5, 7, 6.5, 6, 5.5, 5, 4.5, 4}));
}

TEST(RingPlan, DocumentsTravelToTheLastRankThatNeedsThem) {
    bool some_stay = false, some_go = false;
    for_each_plan([&](const SequenceCut& cut, bool bidirectional, const Documents* documents) {
        if (!documents) return;
        const RingPlan plan(cut, bidirectional, documents);
        const int n = int(cut.ranks());
        for (size_t p = 0; p < plan.kv_chunks(); ++p)
            for (int owner = 0; owner < n; ++owner) {
                const int step = bidirectional && p == 1 ? -1 : 1;
                int last = 0;
                for (int hop = 1; hop < n; ++hop)
                    for (int64_t b = 0; b < documents->batch()->sequences; ++b)
                        if (!visible(cut, (owner + step * hop + n) % n, owner, plan.keys(p),
                                     documents->starts(b))
                                 .empty())
                            last = hop;
                EXPECT_EQ(plan.hops(p, owner), last);
                some_stay = some_stay || last == 0, some_go = some_go || last > 1;
            }
    });
    EXPECT_TRUE(some_stay && some_go);
}

// With two ranks, forward receives the other rank's keys. It keeps them for a reversed backward;
// but if it will run again, they are in a buffer, like those of all other hops.
TEST(RingMemory, KeysThatForwardDoesNotKeepAreABuffer) {
    const RingPlan plan(SequenceCut(Layout::zigzag, 2, 8), false, nullptr);
    const auto in_forward = [&](bool reversed, bool again) {
        return ring_memory(plan, reversed, false, again, 0, 100, 200).communication_forward;
    };
    EXPECT_EQ(in_forward(true, false), 0);
    EXPECT_EQ(in_forward(true, true), 100);
    EXPECT_EQ(in_forward(false, false), 100);
}

}  // namespace
}  // namespace ultrascale
