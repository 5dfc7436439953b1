// --sample, which lets a trained model continue a text, if several ranks share each sequence.
#pragma once

#include "../9_context_parallel.h"
#include "train/sampling.h"

namespace ultrascale::context_parallel {

// All ranks of the group call it; each gets the logits (V) of the token that follows `text`, which
// the rank that has the last token computes.
inline std::vector<float> logits_of_next(Llama& model, HostBatch text, int64_t vocab,
                                         const ContextParallel& context) {
    const int64_t last = text.length - 1;
    pad(text, context.cut().seq());
    const Tensor logits = model.logits(to_device(context.part(text)));  // (1, tokens, V)
    const Tensor row = Tensor::zeros({vocab}, DType::fp32, Memory::workspace);
    for (int64_t i = 0; i < context.local_length(); ++i)
        if (context.position(i) == last)
            ops::copy(row, logits.view({context.local_length(), vocab}).slice(i, i + 1));
    context.group().all_reduce(row);  // zeros except on one rank
    return row.to_host<float>();
}

}  // namespace ultrascale::context_parallel
