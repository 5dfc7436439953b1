// This file adds balance to 1_ring.h: which tokens of a sequence a rank takes, and which keys its
// queries then see. On 8 ranks they work at 100 % instead of 53 % (--demo balance).
//
// With a causal mask query i sees keys 0 .. i, so the last tokens have the most work. If each rank
// takes one piece of the sequence (contiguous), the last one is still busy when the first has long
// finished: the efficiency, mean work / most work of a rank, is only n / (2n - 1). A zig-zag cuts
// the sequence into 2n chunks, and gives rank r a cheap one, chunk r (its head), and an expensive
// one, chunk 2n-1-r (its tail). Then all ranks have equally many pairs of a query and a key,
// s^2/2n + s/2n (Llama 3, ring-flash-attention). Stripes deal the tokens out one by one (Brandon
// et al. 2023), which is nearly as balanced.
//
//     16 tokens, 4 ranks    contiguous   0000111122223333
//                           zigzag       0011223333221100
//                           striped      0123012301230123
//
// What a rank's queries see of the keys of another rank, the owner, for n = 4 and rank 1 (. hidden,
// # seen, \ the triangle), as (queries x keys):
//
//                   owner 0    owner 1    owner 2    owner 3
//     contiguous    #          \          .          .
//     zigzag        # .        \ .        . .        . .         queries of the head
//                   # .        # \        # #        # #         queries of the tail
//     striped       \          \          \          \       without the diagonal if owner > rank
//
// So at every hop a zig-zag costs half of a square: all queries with the head's keys (owner <
// rank), or the tail's queries with all keys (owner > rank).
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "3_windows.h"
#include "context_options.h"
#include "core/error.h"
#include "model/activation.h"
#include "model/parameter.h"

namespace ultrascale::context_parallel {

// Some queries of one rank and some keys of another, the owner, and the mask between them (ops.h;
// its document_starts is left empty). The ranges count the tokens that the rank itself has.
struct Block {
    Range queries, keys;
    ops::AttentionMask mask;
};

// The cut of sequences of `seq` tokens over `ranks` ranks, and their masks (3_windows.h). Within a
// rank tokens stay in order.
class SequenceCut {
public:
    SequenceCut(Layout layout, int64_t ranks, int64_t seq, SequenceMask mask = {})
        : layout_(layout), ranks_(ranks), seq_(seq), mask_(mask) {
        check(seq % multiple(layout, ranks) == 0, "a sequence that cannot be cut");
    }
    // A sequence's length must be a multiple of this.
    static int64_t multiple(Layout layout, int64_t ranks) {
        return layout == Layout::zigzag ? 2 * ranks : ranks;
    }

    int64_t ranks() const { return ranks_; }
    int64_t seq() const { return seq_; }
    const SequenceMask& mask() const { return mask_; }
    int64_t length() const { return seq_ / ranks_; }  // tokens of a rank
    // A rank's consecutive tokens: its chunks (stripes count as one).
    int64_t chunks() const { return layout_ == Layout::zigzag ? 2 : 1; }
    Range chunk(int64_t c) const {  // as local indices
        return {c * length() / chunks(), (c + 1) * length() / chunks()};
    }

    // Returns the place in the whole sequence of a rank's i-th token.
    int64_t position(int64_t rank, int64_t i) const {
        if (layout_ == Layout::striped) return i * ranks_ + rank;
        const int64_t c = i / chunk(0).size();
        return begin(rank, c) + i - chunk(c).begin;
    }
    // Returns how many of a rank's tokens come before a place in the whole sequence.
    int64_t tokens_before(int64_t rank, int64_t position) const {
        if (layout_ == Layout::striped)
            return std::clamp<int64_t>((position - rank + ranks_ - 1) / ranks_, 0, length());
        int64_t count = 0;
        for (int64_t c = 0; c < chunks(); ++c)
            count += std::clamp<int64_t>(position - begin(rank, c), 0, chunk(c).size());
        return count;
    }

    // Returns what the queries of `rank` see of these keys of `owner`, in as few blocks as can be.
    std::vector<Block> blocks(int64_t rank, int64_t owner, Range keys) const {
        if (layout_ != Layout::zigzag || !mask_.is_causal()) return chunk_blocks(rank, owner, keys);
        // exercise 04.2 begin: the causal half of own keys; the tail's queries; the head's keys
        const Range all{0, length()}, head = chunk(0), tail = chunk(1);
        // In a rank's own order a token sees itself and all before it, as in the whole sequence.
        if (owner == rank) {
            const Range queries = keys.begin < head.end ? all : tail;
            return {{queries, keys, {.q_offset = queries.begin, .k_offset = keys.begin}}};
        }
        if (owner > rank) return {{tail, keys, {.causal = false}}};
        if (keys.begin >= head.end) return {};
        return {{all, {keys.begin, std::min(keys.end, head.end)}, {.causal = false}}};
        // exercise 04.2 end
    }
    // Returns the same chunk by chunk. Other masks than the causal one need these smaller blocks:
    // within one, places in the sequence follow from local indices by a single offset (and the
    // stripes' stride).
    std::vector<Block> chunk_blocks(int64_t rank, int64_t owner, Range keys) const {
        const int64_t stride = layout_ == Layout::striped ? ranks_ : 1;
        std::vector<Block> blocks;
        for (int64_t q = 0; q < chunks(); ++q)
            for (int64_t k = 0; k < chunks(); ++k) {
                const Range part{std::max(keys.begin, chunk(k).begin),
                                 std::min(keys.end, chunk(k).end)};
                const int64_t first_query = begin(rank, q),
                              first_key = begin(owner, k) + (part.begin - chunk(k).begin) * stride;
                const Positions of_queries{first_query, chunk(q).size(), stride},
                    of_keys{first_key, part.size(), stride};
                if (part.size() <= 0 || !mask_.any(of_queries, of_keys)) continue;
                const bool causal = (stride > 1 || first_query < first_key + part.size()) &&
                                    of_keys.last() >= mask_.prefix;
                blocks.push_back({chunk(q),
                                  part,
                                  {.causal = causal,
                                   .q_offset = first_query,
                                   .k_offset = first_key,
                                   .stride = stride,
                                   .prefix = mask_.prefix}});
            }
        return blocks;
    }

    // Returns the number of pairs of a query of `rank` and a key that it sees. document_starts (one
    // for each token of the sequence) says how far back each query sees; if it is null, the window
    // does.
    int64_t pairs(int64_t rank, int64_t owner, Range queries, Range keys,
                  const int32_t* document_starts) const {
        int64_t pairs = 0;
        for (int64_t i = queries.begin; i < queries.end; ++i) {
            const int64_t at = position(rank, i),
                          from = document_starts ? document_starts[at] : mask_.first_key(at);
            const int64_t begin = std::max(tokens_before(owner, from), keys.begin),
                          end = std::min(tokens_before(owner, mask_.key_end(at)), keys.end);
            pairs += std::max<int64_t>(end - begin, 0);
        }
        return pairs;
    }
    int64_t pairs(int64_t rank, int64_t owner, const int32_t* document_starts = nullptr) const {
        return pairs(rank, owner, {0, length()}, {0, length()}, document_starts);
    }

private:
    // Returns the place in the sequence where a rank's chunk begins.
    int64_t begin(int64_t rank, int64_t c) const {
        // exercise 04.3 begin: where chunk c of a rank's begins in the sequence
        if (layout_ == Layout::striped) return rank;
        if (layout_ == Layout::contiguous) return rank * length();
        return (c == 0 ? rank : 2 * ranks_ - 1 - rank) * chunk(0).size();
        // exercise 04.3 end
    }

    Layout layout_;
    int64_t ranks_, seq_;
    SequenceMask mask_;
};

// Permutations of rows for ops::gather_rows, for layouts whose chunks do not arrive in order. Each
// is made once and stays on the device.
class RowOrders {
public:
    // The order in which the rows of a tensor (a, b, row) become those of one (b, a, row).
    const Tensor& swapped(int64_t a, int64_t b) {
        return made({0, a, b}, [&](std::vector<int32_t>& rows) {
            for (int64_t j = 0; j < b; ++j)
                for (int64_t i = 0; i < a; ++i) rows.push_back(int32_t(i * b + j));
        });
    }
    // Another permutation, which `make` writes into a vector. `key` identifies it, and its first
    // number is not 0, which is swapped()'s.
    template <class Make>
    const Tensor& made(const std::vector<int64_t>& key, Make make) {
        Tensor& index = (*made_)[key];
        if (!index) {
            std::vector<int32_t> rows;
            make(rows);
            index = Tensor::from_host<int32_t>(rows, {int64_t(rows.size())}, Memory::workspace);
        }
        return index;
    }

private:
    std::shared_ptr<std::map<std::vector<int64_t>, Tensor>> made_ =
        std::make_shared<std::map<std::vector<int64_t>, Tensor>>();
};

// x's rows in another order, as a tensor of this shape.
inline Tensor reordered(const Tensor& x, const Tensor& order, Shape shape, Memory category) {
    const Tensor y = Tensor::empty(std::move(shape), x.dtype(), category);
    ops::gather_rows(y, x, order);
    return y;
}

}  // namespace ultrascale::context_parallel
