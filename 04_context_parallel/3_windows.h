// This file adds two masks to the causal one: a sliding window (--window W, Mistral's), in which a
// token sees W keys, its own and those before it; and a prefix (--prefix P), whose tokens all see
// each other (T5's and PaLM's prefix-LM). Query i sees the keys from `first` to `last`:
//
//     first = max(0, i - W + 1)     last = max(i, P - 1)
//
//     8 tokens          causal      W = 3       P = 4       # seen, . hidden
//              query 0  #.......    #.......    ####....
//                    1  ##......    ##......    ####....
//                    2  ###.....    ###.....    ####....
//                    3  ####....    .###....    ####....
//                    4  #####...    ..###...    #####...
//                    5  ######..    ...###..    ######..
//                    6  #######.    ....###.    #######.
//                    7  ########    .....###    ########
//     pairs             T(T+1)/2    - (T-W)(T-W+1)/2        + P(P-1)/2       (attended_pairs)
//
// THE RING. Let a rank have L = T/n consecutive tokens. A query reaches W-1 tokens back, which are
// tokens of at most h = ceil((W-1)/L) other ranks. So keys make h hops instead of n-1, and none go
// from the last rank to the first:
//
//     n = 4, W-1 <= L:     k0 -> 1      k1 -> 2      k2 -> 3      k3 stays           1 hop
//     backward             dk0 -> 1, then home: -> 0              ...                1 hop and 1
//
// Backward runs as with documents (3_documents.h): the sums of a key's gradients follow it, and the
// last rank that adds to them sends them straight home. A rank far from both ends sends h kv in
// forward, and h kv + (h+1) dkv in backward (kv, dkv: bytes of a rank's keys and values, and of
// their gradients), whatever T is.
//
// A zig-zag loses its reason: all queries but the first W-1 see W keys, so contiguous pieces are
// balanced (mean / most = 1 - (W-1)/2T if W <= L). And it costs more. Its chunks are half as long,
// so keys cross twice as many borders; and the tokens after a rank's tail are the *previous*
// rank's, n-1 hops away on a ring that runs one way (--bidirectional on sends them there in one).
//
// A prefix sends no more bytes: all keys go all the way round anyway, and ranks that only passed
// them on now see the prefix's. It adds pairs to the first tokens. That balances contiguous pieces
// better and a zig-zag worse, as its heads are no longer cheap; stripes stay even.
//
// THE LOSS counts only what follows the prefix (train/data.h): inside it a token sees its target.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/ops.h"
#include "core/ops_attention.h"
#include "model/config.h"

namespace ultrascale::context_parallel {

// The places in the sequence of some tokens: first, first + stride, ...
struct Positions {
    int64_t first, count, stride;
    int64_t last() const { return first + (count - 1) * stride; }
};

// The mask of every sequence of T tokens, besides what its documents hide.
struct SequenceMask {
    int64_t window = 0, prefix = 0;  // 0: none
    bool is_causal() const { return window == 0 && prefix == 0; }

    // The keys [first_key, key_end) that the query at a position sees.
    int64_t first_key(int64_t query) const {
        return window > 0 ? std::max<int64_t>(query - window + 1, 0) : 0;
    }
    int64_t key_end(int64_t query) const { return std::max(query + 1, prefix); }
    // Whether any of these queries sees any of these keys. Both have the same stride, and at least
    // one token.
    bool any(const Positions& queries, const Positions& keys) const {
        // exercise 04.8 begin: the shortest way back from a query to a key; the prefix's last key
        const int64_t ahead = keys.first - queries.first, stride = keys.stride,
                      back = queries.first >= keys.last()
                                 ? queries.first - keys.last()
                                 : -ahead - ops::divide_down(-ahead, stride) * stride;
        if (back <= queries.last() - keys.first && (window == 0 || back < window)) return true;
        const int64_t last_key = std::min(prefix - 1, keys.last());
        return last_key >= keys.first &&
               queries.first < last_key - (last_key - keys.first) % stride;
        // exercise 04.8 end
    }
    // The hops that keys make between contiguous pieces of `length` tokens of n ranks.
    int64_t hops(int64_t length, int64_t n) const {
        return window > 0 ? std::min((window + length - 2) / length, n - 1) : n - 1;
    }
};
inline SequenceMask mask_of(const LlamaConfig& config) { return {config.window, config.prefix}; }

}  // namespace ultrascale::context_parallel
