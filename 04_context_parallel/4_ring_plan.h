// This file adds ways to go round: which keys and values travel, in which direction and how far. It
// makes a plan, which 6_general_ring.h carries out. On 4 ranks a ring in both directions sends 7.6
// MiB a step on average, the plain one 10.0 (README.md).
//
// Keys and values travel as KV chunks. Each is a part of its owner's tokens, and goes one rank a
// hop:
//
//     plain             one KV chunk a rank, all its tokens, to the next rank, n - 1 hops
//     bidirectional     two: the head to the next rank, n - 1 hops; the tail to the previous one,
//                       as far as rank 0
//     documents,        one a chunk, to the next rank, as far as some rank needs it
//     a window
//
//     at hop   0    1    2    3        whose KV chunk a rank holds in the plain ring; reversed() is
//     rank 0   0    3    2    1        the same table from right to left
//     rank 1   1    0    3    2
//     rank 2   2    1    0    3
//     rank 3   3    2    1    0
#pragma once

#include <algorithm>
#include <vector>

#include "2_zigzag.h"
#include "3_documents.h"

namespace ultrascale::context_parallel {

class RingPlan {
public:
    struct KvChunk {
        Range keys;                  // of the owner's tokens
        int direction;               // 1: to the next rank, -1: to the previous one
        int start = 0;               // where it is at hop 0: this many ranks after its owner
        std::vector<int> hops = {};  // by owner
    };

    // `documents`: null without.
    RingPlan(const SequenceCut& cut, bool bidirectional, const Documents* documents)
        : cut_(cut), documents_(documents), ranks_(int(cut.ranks())) {
        const bool masked = !is_whole(), chunks = bidirectional || masked;
        const int64_t kv_chunks = chunks ? cut.chunks() : 1;
        for (int64_t c = 0; c < kv_chunks; ++c) {
            KvChunk kv_chunk{.keys = chunks ? cut.chunk(c) : Range{0, cut.length()},
                             .direction = bidirectional && c == 1 ? -1 : 1};
            for (int owner = 0; owner < ranks_; ++owner) {
                int hops = kv_chunk.direction < 0 ? owner : ranks_ - 1;
                if (masked)
                    while (hops > 0 && !needs(at(kv_chunk, owner, hops), owner, kv_chunk.keys))
                        --hops;
                kv_chunk.hops.push_back(hops);
            }
            kv_chunks_.push_back(std::move(kv_chunk));
        }
    }

    // The same way back: each KV chunk begins where it ended, and ends at its owner. That is
    // possible only if every rank ends with one KV chunk, as in the plain ring.
    bool can_reverse() const { return is_uniform() && ranks_ > 1; }
    RingPlan reversed() const {
        RingPlan back = *this;
        back.kv_chunks_[0].start = (ranks_ - 1) * kv_chunks_[0].direction;
        back.kv_chunks_[0].direction = -kv_chunks_[0].direction;
        return back;
    }

    // Whether every rank sends and receives equally many tokens at each hop.
    bool is_uniform() const { return kv_chunks_.size() == 1 && is_whole(); }
    // Whether no query sees more than two blocks of keys.
    bool merges_once() const { return is_uniform() && ranks_ == 2; }

    size_t kv_chunks() const { return kv_chunks_.size(); }
    int64_t tokens(size_t kv_chunk) const { return kv_chunks_[kv_chunk].keys.size(); }
    Range keys(size_t kv_chunk) const { return kv_chunks_[kv_chunk].keys; }
    // Returns keys of its owner that a KV chunk has, counted from the KV chunk's first one.
    Range in_kv_chunk(size_t kv_chunk, Range owner_keys) const {
        const int64_t first = keys(kv_chunk).begin;
        return {owner_keys.begin - first, owner_keys.end - first};
    }
    // The last hop at which any rank holds a KV chunk that has travelled.
    int last_hop() const {
        int last = 0;
        for (const KvChunk& kv_chunk : kv_chunks_)
            last = std::max(last, *std::ranges::max_element(kv_chunk.hops));
        return last;
    }

    // Whose KV chunk a rank holds at a hop; none if no KV chunk has come so far.
    static constexpr int none = -1;
    int owner(size_t kv_chunk, int rank, int hop) const {
        const KvChunk& p = kv_chunks_[kv_chunk];
        const int owner = modulo(rank - p.start - p.direction * hop);
        return hop <= p.hops[size_t(owner)] ? owner : none;
    }
    // Whether the KV chunk that a rank holds at a hop travels on, and where to; and where one comes
    // from.
    bool goes_on(size_t kv_chunk, int rank, int hop) const {
        const int from = owner(kv_chunk, rank, hop);
        return from != none && hop < kv_chunks_[kv_chunk].hops[size_t(from)];
    }
    int to(size_t kv_chunk, int rank) const {
        return modulo(rank + kv_chunks_[kv_chunk].direction);
    }
    int from(size_t kv_chunk, int rank) const {
        return modulo(rank - kv_chunks_[kv_chunk].direction);
    }
    // The rank where an owner's KV chunk ends, after all its hops: its gradient goes home from
    // there.
    int end(size_t kv_chunk, int owner) const {
        return at(kv_chunks_[kv_chunk], owner, hops(kv_chunk, owner));
    }
    int hops(size_t kv_chunk, int owner) const { return kv_chunks_[kv_chunk].hops[size_t(owner)]; }

    // What this rank's queries of sequence b see of a KV chunk.
    std::vector<Block> blocks(size_t kv_chunk, int rank, int owner, int64_t b) const {
        const Range keys = kv_chunks_[kv_chunk].keys;
        return documents_ ? documents_->blocks(b, rank, owner, keys)
                          : cut_.blocks(rank, owner, keys);
    }

private:
    // Whether all keys go round, whoever sees them: without documents and windows.
    bool is_whole() const { return !documents_ && cut_.mask().window == 0; }
    int modulo(int rank) const { return (rank % ranks_ + ranks_) % ranks_; }
    int at(const KvChunk& kv_chunk, int owner, int hop) const {
        return modulo(owner + kv_chunk.start + kv_chunk.direction * hop);
    }
    bool needs(int rank, int owner, Range keys) const {
        return documents_ ? documents_->any(rank, owner, {0, cut_.length()}, keys)
                          : !cut_.chunk_blocks(rank, owner, keys).empty();
    }

    SequenceCut cut_;
    const Documents* documents_;
    int ranks_;
    std::vector<KvChunk> kv_chunks_;
};

// The dtype in which a ring adds up outputs of this dtype. A single merge is computed in fp32
// anyway, so its result may be rounded at once.
inline DType sum_dtype(const ContextOptions& o, const RingPlan& plan, DType outputs) {
    return plan.merges_once() && o.merge == DType::fp32 ? outputs : o.merge;
}

}  // namespace ultrascale::context_parallel
