// A batch of samples, on the host and on the device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/ops.h"

namespace ultrascale {

// The first position that the query at `position` sees: that of its document and, with a sliding
// window of `window` keys (0: none), at most window - 1 positions before its own.
inline int32_t first_visible(int32_t position, int32_t document_start, int64_t window) {
    return window > 0 ? int32_t(std::max<int64_t>(document_start, position - window + 1))
                      : document_start;
}

// A batch of samples on the host. All vectors are (B, T), row-major.
struct HostBatch {
    int64_t sequences = 0, length = 0;
    std::vector<int32_t> tokens, targets;  // ignored targets are -100
    std::vector<int32_t> positions;  // 0, 1, 2, ... from the start of the sequence or document
    // The index in the sequence of the first token that a token sees: its document's, or that of
    // its sliding window if that is later. Empty if there are neither documents nor windows.
    std::vector<int32_t> document_starts;
    int64_t prefix = 0;  // so many first tokens of each sequence see each other
    int64_t counted_targets = 0;
    int64_t first_sample = 0;  // the run's index of its first sequence
    // If the batch holds only a part of each sequence: the sequences' whole length and, if
    // document_starts are not empty, the whole batch.
    int64_t whole_length = 0;
    std::shared_ptr<const HostBatch> whole = {};
};

// One micro-batch on the device. positions restart at each document; document_starts is as in
// HostBatch.
struct Batch {
    Tensor tokens, targets, positions, document_starts;  // (B, T) int32
    int64_t prefix = 0;                                  // as in HostBatch
    int64_t counted_targets = 0;                         // number of targets that are not ignored
    // The run's index of the batch's first sequence, whatever the layout of ranks.
    int64_t first_sample = 0;
    // If a rank holds only a part of each sequence (see HostBatch): the whole length and the whole
    // batch.
    int64_t whole_length = 0;
    std::shared_ptr<const HostBatch> whole = {};
    int64_t sequences() const { return tokens.size(0); }
    int64_t length() const { return tokens.size(1); }
    int64_t sample_length() const { return whole_length > 0 ? whole_length : length(); }
    // Attention's mask, if the rank has whole sequences.
    ops::AttentionMask mask() const {
        return {.document_starts = document_starts, .prefix = prefix};
    }
};

}  // namespace ultrascale
