// Helpers for the tests of 04_context_parallel's cuts: pairs of a query and a key, counted one by
// one; documents; and every cut.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "04_context_parallel/2_zigzag.h"
#include "04_context_parallel/3_documents.h"

namespace ultrascale {
using namespace ultrascale::context_parallel;
using Starts = std::vector<int32_t>;

// Packs documents of these lengths one after the other.
inline Starts starts_of(const std::vector<int64_t>& lengths) {
    Starts starts;
    for (const int64_t length : lengths) {
        const auto first = int32_t(starts.size());
        for (int64_t i = 0; i < length; ++i) starts.push_back(first);
    }
    return starts;
}
// Fills `seq` tokens with documents in a few ways; some documents begin and end inside chunks.
inline std::vector<Starts> ways_to_fill(int64_t seq) {
    const int64_t third = std::max<int64_t>(seq / 3, 1);
    std::vector<int64_t> short_ones(size_t(seq / 2), 2);
    if (seq % 2 == 1) short_ones.push_back(1);
    return {starts_of({seq}), starts_of({third, seq - third}), starts_of({1, seq - 1}),
            starts_of(short_ones)};
}
inline Documents documents_of(const std::vector<Starts>& sequences, const SequenceCut& cut) {
    auto whole = std::make_shared<HostBatch>();
    whole->sequences = int64_t(sequences.size()), whole->length = cut.seq();
    for (const Starts& starts : sequences)
        whole->document_starts.insert(whole->document_starts.end(), starts.begin(), starts.end());
    return {whole, cut};
}

inline void for_each_cut(const std::function<void(Layout, const SequenceCut&)>& visit) {
    for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
        for (int64_t n = 1; n <= 8; ++n) {
            SCOPED_TRACE(testing::Message() << layout_names[int(layout)] << ", " << n << " ranks");
            visit(layout, SequenceCut(layout, n, 3 * SequenceCut::multiple(layout, n)));
        }
}

// Pairs of a query of `rank` and a key of `owner`, as local indices.
using Pairs = std::map<std::pair<int64_t, int64_t>, int>;  // how often each pair was found
inline Pairs visible(const SequenceCut& cut, int64_t rank, int64_t owner, Range keys,
                     const int32_t* starts) {
    Pairs pairs;
    for (int64_t i = 0; i < cut.length(); ++i)
        for (int64_t j = keys.begin; j < keys.end; ++j) {
            const int64_t q = cut.position(rank, i), k = cut.position(owner, j);
            const bool after = k > q && k >= cut.mask().prefix;
            if (!after && k >= (starts ? starts[q] : 0)) pairs[{i, j}] = 1;
        }
    return pairs;
}
// Returns the pairs that the masks of these blocks let through.
inline Pairs through(const std::vector<Block>& blocks, const SequenceCut& cut, int64_t rank,
                     const int32_t* starts) {
    Pairs pairs;
    for (const auto& [queries, keys, mask] : blocks) {
        EXPECT_TRUE(0 <= queries.begin && queries.end <= cut.length());
        EXPECT_TRUE(0 <= keys.begin && keys.end <= cut.length());
        for (int64_t i = queries.begin; i < queries.end; ++i)
            for (int64_t j = keys.begin; j < keys.end; ++j) {
                const int64_t q = mask.q_offset + (i - queries.begin) * mask.stride,
                              k = mask.k_offset + (j - keys.begin) * mask.stride;
                const int64_t from = starts ? starts[cut.position(rank, i)] : 0;
                if ((!mask.causal || q >= k || k < mask.prefix) && k >= from) ++pairs[{i, j}];
            }
    }
    return pairs;
}

}  // namespace ultrascale
