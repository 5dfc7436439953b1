// --sample if each rank has the logits of its part of the vocabulary only.
#pragma once

#include "../3_vocabulary_embedding.h"
#include "core/ops.h"
#include "train/sampling.h"

namespace ultrascale::tensor_parallel {

// All ranks of the group call it; each gets the logits (V) of the token that follows `text`.
// `multiple`: the number of tokens must be a multiple of this, so that the ranks can share them.
inline std::vector<float> logits_of_next(Llama& model, HostBatch text, int64_t vocab,
                                         const Communicator& tp, int64_t multiple) {
    const int64_t last = text.length - 1;
    pad(text, (text.length + multiple - 1) / multiple * multiple);
    const Tensor logits = model.logits(to_device(text));  // (1, T, this rank's part of V)
    const int64_t largest = (vocab + tp.size() - 1) / tp.size();
    const Tensor mine = Tensor::zeros({largest}, DType::fp32, Memory::workspace);
    const Tensor row = logits.view({text.length, logits.cols()}).slice(last, last + 1);
    ops::copy(mine.slice(0, row.numel()), row);
    const Tensor parts = Tensor::empty({tp.size(), largest}, DType::fp32, Memory::workspace);
    tp.all_gather(parts, mine);
    const std::vector<float> padded = parts.to_host<float>();
    std::vector<float> all;
    for (int rank = 0; rank < tp.size(); ++rank) {
        const auto begin = padded.begin() + rank * largest;
        all.insert(all.end(), begin, begin + vocabulary_shard(vocab, tp.size(), rank).size());
    }
    return all;
}

}  // namespace ultrascale::tensor_parallel
