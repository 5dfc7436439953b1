// This file adds documents (--document-token), inside which attention stays although sequences are
// cut. Where each line of a text is one, 8 ranks send 10.1 MiB a step instead of 11.0
// (MEASURED.md).
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
// still hold pairs. The batch must come from a loader with a document token or a window.
class Documents {
public:
    Documents(std::shared_ptr<const HostBatch> whole, const SequenceCut& cut)
        : whole_(std::move(whole)), cut_(cut) {}

    const HostBatch* batch() const { return whole_.get(); }
    // Those of sequence b, by place in the sequence.
    const int32_t* starts(int64_t b) const {
        return whole_->document_starts.data() + b * whole_->length;
    }
    // Returns whether some of these queries of `rank`, in some sequence, sees some of these keys of
    // `owner`.
    bool any(int64_t rank, int64_t owner, Range queries, Range keys) const {
        for (int64_t b = 0; b < whole_->sequences; ++b)
            if (cut_.pairs(rank, owner, queries, keys, starts(b)) > 0) return true;
        return false;
    }
    // Returns the blocks of sequence b that hold pairs.
    std::vector<Block> blocks(int64_t b, int64_t rank, int64_t owner, Range keys) const {
        std::vector<Block> blocks = cut_.chunk_blocks(rank, owner, keys);
        std::erase_if(blocks, [&](const Block& block) {
            return cut_.pairs(rank, owner, block.queries, block.keys, starts(b)) == 0;
        });
        return blocks;
    }
    // Returns the document starts of a rank's tokens (B, tokens), in its order, as attention's mask
    // wants them.
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

}  // namespace ultrascale::context_parallel
