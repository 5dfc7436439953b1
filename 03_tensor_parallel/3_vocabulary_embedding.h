// The embedding is split over the vocabulary: rank r has the rows of its tokens, and gives zeros
// for all others. So the sum over ranks is the embedding, and it is exact, because only one summand
// of each row is not zero.
//
//     tokens      7      2      9        forward    f*: all-reduce (rung 2, g*: reduce-scatter)
//     rank 0    ( 0 )  (E_2)  ( 0 )      backward   f*: nothing (g*: all-gather); each rank adds dx
//     rank 1    (E_7)  ( 0 )  (E_9)                 to the rows of its own tokens
//
// Shards are tokens V r/tp .. V (r+1)/tp. They need not be equal, since no communicated tensor has
// the vocabulary's size. So there are no padding rows for the loss to leave out.
#pragma once

#include "1_parallel_region.h"
#include "core/ops.h"

namespace ultrascale::tensor_parallel {

inline Range vocabulary_shard(int64_t vocab, int64_t tp, int64_t rank) {
    return {vocab * rank / tp, vocab * (rank + 1) / tp};
}

class VocabularyEmbedding : public Embedding {
public:
    VocabularyEmbedding(Parameter* weight, const ParallelRegion& region)
        : Embedding(weight), region_(region) {}

    Tensor forward(Saved&, Context& context) override {
        const int64_t h = weight_->value.cols();
        Tensor partial =
            region_.empty_partial({context.batch.tokens.numel(), h}, weight_->value.dtype());
        ops::embedding_forward(partial, context.batch.tokens, weight_->value,
                               weight_->slice[0].begin);
        return region_.leave(std::move(partial)).view(region_.stream_shape(context.batch, h));
    }

    void backward_weight(Saved& saved, Context& context) override {
        const Tensor dy = region_.enter(saved.take("dy"));  // (B T, h)
        ops::embedding_backward(weight_->begin_contribution_in_place(), context.batch.tokens, dy,
                                weight_->slice[0].begin);
        context.contributed(*weight_);
    }

private:
    const ParallelRegion& region_;
};

}  // namespace ultrascale::tensor_parallel
