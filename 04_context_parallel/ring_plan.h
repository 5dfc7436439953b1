// Which keys and values travel round the ring, in which direction and how far: what ring.h carries
// out.
//
// They travel as parcels, each a part of its owner's tokens, one rank a hop:
//
//     plain             one parcel a rank, all its tokens, to the next rank, n - 1 hops
//     tails             two: the head to the next rank, n - 1 hops; the tail to the previous one,
//                       as far as rank 0
//     documents         one a chunk, to the next rank, as far as some rank needs it
//
//     hop      0    1    2    3        whose parcel a rank holds in the plain ring; reversed() is
//     rank 0   0    3    2    1        the same table from right to left
//     rank 1   1    0    3    2
//     rank 2   2    1    0    3
//     rank 3   3    2    1    0
#pragma once

#include <algorithm>
#include <vector>

#include "documents.h"
#include "zigzag.h"

namespace ultrascale {

class RingPlan {
public:
    struct Parcel {
        Range keys;                  // of the owner's tokens
        int direction;               // 1: to the next rank, -1: to the previous one
        int start = 0;               // where it is at hop 0: this many ranks after its owner
        std::vector<int> hops = {};  // by owner
    };

    // `documents`: null without.
    RingPlan(const SequenceCut& cut, bool tails, const Documents* documents)
        : cut_(cut), documents_(documents), ranks_(int(cut.ranks())) {
        const bool chunks = tails || documents;
        const int64_t parcels = chunks ? cut.chunks() : 1;
        for (int64_t c = 0; c < parcels; ++c) {
            Parcel parcel{.keys = chunks ? cut.chunk(c) : Range{0, cut.length()},
                          .direction = tails && c == 1 ? -1 : 1};
            for (int owner = 0; owner < ranks_; ++owner) {
                int hops = parcel.direction < 0 ? owner : ranks_ - 1;
                if (documents)
                    while (hops > 0 && !needs(at(parcel, owner, hops), owner, parcel.keys)) --hops;
                parcel.hops.push_back(hops);
            }
            parcels_.push_back(std::move(parcel));
        }
    }

    // The same way back: each parcel begins where it ended, and ends at its owner. Only if every
    // rank ends with one parcel, as in the plain ring.
    bool can_reverse() const { return is_uniform() && ranks_ > 1; }
    RingPlan reversed() const {
        RingPlan back = *this;
        back.parcels_[0].start = (ranks_ - 1) * parcels_[0].direction;
        back.parcels_[0].direction = -parcels_[0].direction;
        return back;
    }

    // Every rank sends and receives the same tokens at each hop.
    bool is_uniform() const { return parcels_.size() == 1 && !documents_; }
    // No query sees more than two blocks of keys.
    bool merges_once() const { return is_uniform() && ranks_ == 2; }

    size_t parcels() const { return parcels_.size(); }
    int64_t tokens(size_t parcel) const { return parcels_[parcel].keys.size(); }
    Range keys(size_t parcel) const { return parcels_[parcel].keys; }
    // Keys of its owner that a parcel has, counted from the parcel's first one.
    Range in_parcel(size_t parcel, Range of_owner) const {
        const int64_t first = keys(parcel).begin;
        return {of_owner.begin - first, of_owner.end - first};
    }
    // The last hop at which any rank holds a parcel that has travelled.
    int last_hop() const {
        int last = 0;
        for (const Parcel& parcel : parcels_)
            last = std::max(last, *std::ranges::max_element(parcel.hops));
        return last;
    }

    // Whose parcel a rank holds at a hop; none if no parcel has come so far.
    static constexpr int none = -1;
    int owner(size_t parcel, int rank, int hop) const {
        const Parcel& p = parcels_[parcel];
        const int owner = modulo(rank - p.start - p.direction * hop);
        return hop <= p.hops[size_t(owner)] ? owner : none;
    }
    // Whether the parcel that a rank holds at a hop travels on, and where to; and where one comes
    // from.
    bool goes_on(size_t parcel, int rank, int hop) const {
        const int from = owner(parcel, rank, hop);
        return from != none && hop < parcels_[parcel].hops[size_t(from)];
    }
    int to(size_t parcel, int rank) const { return modulo(rank + parcels_[parcel].direction); }
    int from(size_t parcel, int rank) const { return modulo(rank - parcels_[parcel].direction); }
    // The rank where an owner's parcel ends, after all its hops: its gradient goes home from there.
    int end(size_t parcel, int owner) const {
        return at(parcels_[parcel], owner, hops(parcel, owner));
    }
    int hops(size_t parcel, int owner) const { return parcels_[parcel].hops[size_t(owner)]; }

    // What this rank's queries of sequence b see of a parcel.
    std::vector<Block> blocks(size_t parcel, int rank, int owner, int64_t b) const {
        const Range keys = parcels_[parcel].keys;
        return documents_ ? documents_->blocks(b, rank, owner, keys)
                          : cut_.blocks(rank, owner, keys);
    }

private:
    int modulo(int rank) const { return (rank % ranks_ + ranks_) % ranks_; }
    int at(const Parcel& parcel, int owner, int hop) const {
        return modulo(owner + parcel.start + parcel.direction * hop);
    }
    bool needs(int rank, int owner, Range keys) const {
        return documents_->any(rank, owner, {0, cut_.length()}, keys);
    }

    SequenceCut cut_;
    const Documents* documents_;
    int ranks_;
    std::vector<Parcel> parcels_;
};

// The dtype in which a ring adds up outputs of this dtype. A single merge is computed in fp32
// anyway, so its result may be rounded at once.
inline DType sum_dtype(const ContextOptions& o, const RingPlan& plan, DType outputs) {
    return plan.merges_once() && o.merge == DType::fp32 ? outputs : o.merge;
}

}  // namespace ultrascale
