// Documents: attention that stays inside documents (--document-token), when sequences are cut.
//
// A query sees only keys of its own document. So a block of queries and keys from different
// documents holds no pair: it is not computed, and keys that no rank further on needs are not sent.
//
//     a document     |...A...|.........B.........|.C.|
//     chunks of 4    r0   r1   r2   r3   r3   r2   r1   r0      most blocks off the diagonal are
//     ranks          |    |    |    |    |    |    |    |       empty, if documents are short
//
// This ruins the balance of a zig-zag: rank r's tail no longer sees all that lies before it.
// Stripes stay balanced (every rank has a part of every document), and so does a zig-zag made
// within each document (Megatron's way). --document-token prints the balance of all of them.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "2_zigzag.h"
#include "model/parts.h"
#include "train/data.h"

namespace ultrascale::context_parallel {

// The document starts of a batch's whole sequences, and which blocks of the cut sequences then
// still hold pairs. The batch must come from a loader with a document token.
class Documents {
public:
    Documents(std::shared_ptr<const HostBatch> whole, const SequenceCut& cut)
        : whole_(std::move(whole)), cut_(cut) {}

    const HostBatch* batch() const { return whole_.get(); }
    // Of sequence b, by place in the sequence.
    const int32_t* starts(int64_t b) const {
        return whole_->document_starts.data() + b * whole_->length;
    }
    // Whether some query among these of `rank`, in some sequence, sees some of these keys of owner.
    bool any(int64_t rank, int64_t owner, Range queries, Range keys) const {
        for (int64_t b = 0; b < whole_->sequences; ++b)
            if (cut_.pairs(rank, owner, queries, keys, starts(b)) > 0) return true;
        return false;
    }
    // The blocks of sequence b that hold pairs.
    std::vector<Block> blocks(int64_t b, int64_t rank, int64_t owner, Range keys) const {
        std::vector<Block> blocks = cut_.chunk_blocks(rank, owner, keys);
        std::erase_if(blocks, [&](const Block& block) {
            return cut_.pairs(rank, owner, block.queries, block.keys, starts(b)) == 0;
        });
        return blocks;
    }
    // The document starts of a rank's tokens (B, tokens), in its order, as attention's mask wants.
    Tensor starts_of(int64_t rank) const {
        std::vector<int32_t> values;
        for (int64_t b = 0; b < whole_->sequences; ++b)
            for (int64_t i = 0; i < cut_.length(); ++i)
                values.push_back(starts(b)[cut_.position(rank, i)]);
        return Tensor::from_host<int32_t>(values, {whole_->sequences, cut_.length()},
                                          Memory::workspace);
    }

private:
    std::shared_ptr<const HostBatch> whole_;
    SequenceCut cut_;
};

// Attended pairs of a sequence, over the ranks: their mean, and the most of any rank. The work is
// balanced if mean / most is 1.
struct Balance {
    double mean = 0, most = 0;
    double efficiency() const { return most > 0 ? mean / most : 1; }
};
inline Balance balance_of(const std::vector<double>& pairs) {
    Balance balance;
    for (const double rank_pairs : pairs)
        balance.mean += rank_pairs / double(pairs.size()),
            balance.most = std::max(balance.most, rank_pairs);
    return balance;
}

// The pairs of each rank of a cut.
inline std::vector<double> pairs_by_rank(const SequenceCut& cut, const int32_t* document_starts) {
    std::vector<double> pairs(size_t(cut.ranks()), 0.0);
    for (int64_t rank = 0; rank < cut.ranks(); ++rank)
        for (int64_t i = 0; i < cut.length(); ++i) {
            const int64_t at = cut.position(rank, i);
            pairs[size_t(rank)] += double(at + 1 - (document_starts ? document_starts[at] : 0));
        }
    return pairs;
}
// The same for a zig-zag within each document: each is cut into 2n pieces of nearly equal size, and
// rank r takes pieces r and 2n-1-r. (Only counted, to compare: attention on it would need a mask
// for every token.)
inline std::vector<double> pairs_by_document_zigzag(int64_t ranks, int64_t seq,
                                                    const int32_t* document_starts) {
    std::vector<double> pairs(size_t(ranks), 0.0);
    for (int64_t first = 0; first < seq;) {
        int64_t end = first + 1;
        while (end < seq && document_starts[end] == first) ++end;
        for (int64_t piece = 0; piece < 2 * ranks; ++piece) {
            const int64_t rank = std::min(piece, 2 * ranks - 1 - piece), size = end - first;
            const int64_t begin = size * piece / (2 * ranks),
                          stop = size * (piece + 1) / (2 * ranks);
            for (int64_t i = begin; i < stop; ++i) pairs[size_t(rank)] += double(i + 1);
        }
        first = end;
    }
    return pairs;
}

}  // namespace ultrascale::context_parallel
