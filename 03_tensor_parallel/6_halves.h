// On rung 3, after 5_async_backward.h, and instead of 6_chunked_linear.h: a micro-batch runs as two
// halves, each with half of the sequences. They have nothing to do with each other, so one of them
// computes while the other one communicates, in forward and in backward:
//
//     in one piece  compute   [ attention 1+2  ]             [ feed-forward 1+2 ]
//                   network                     [ sum 1+2   ]                    [ sum 1+2   ]
//
//     in halves     compute   [ attn. 1][ attn. 2][ f.f. 1 ][ f.f. 2 ][ next 1 ]
//                   network             [ sum 1 ]  [ sum 2 ] [ sum 1 ] [ sum 2 ]
//
//     backward      compute   [ dX, dW 1 ][ dX, dW 2 ][ dX, dW 1 ][ dX, dW 2 ]   of a region each
//                   network            [ sum dX 1 ][ sum dX 2 ][ sum dX 1 ][ sum dX 2 ]
//
// No product is cut within a half, and a sum may take as long as the other half's whole region. What
// stays exposed is the first and the last communication of a pair of halves. A half's turn ends
// where it would wait (ParallelRegion::wait), and the other half goes on from where its own turn
// ended (train/interleave.h).
//
// On rung 2 there is only a norm between a reduce-scatter and the next all-gather, which is too
// little to hide either of them under. So a half has three turns a region in forward, and the second
// half is one turn behind. Each communication runs under the other half's next turn:
//
//     turns of half 1   [ norm    ]           [ column  ]            [ row     ]           [ norm
//     turns of half 2              [ row     ]           [ norm     ]           [ column  ]
//     network                      [gather 1 ][scatter 2]            [gather 2 ][scatter 1]
//
// ("Row" is all that follows a column linear's product, up to the row linear's.) In backward a turn
// ends between a column linear's dX and its dW, on both rungs, and at the gather of rung 2.
//
// It has its price. A product of half as many rows is less efficient, each communication has half
// the bytes and twice the calls, and on a GPU NCCL's kernels take SMs from the products that they
// run beside. Wang et al. 2024, "Domino: Eliminating Communication in LLM Training via Generic
// Tensor Slicing and Overlapping", https://arxiv.org/abs/2409.15241.
#pragma once

#include "5_async_backward.h"
#include "model/llama.h"
#include "train/step.h"

namespace ultrascale::tensor_parallel {

// Rung 2 in forward: a turn ends with the product.
class ColumnLinearOfHalves : public AsyncColumnLinear {
public:
    using AsyncColumnLinear::AsyncColumnLinear;

    Tensor forward(const Tensor& x, Saved& saved, Context& context,
                   const Tensor& residual) override {
        Tensor y = AsyncColumnLinear::forward(x, saved, context, residual);
        region_.end_turn();
        return y;
    }
};

// Forward and backward of a step's micro-batches, each of which is half of one. They are added up
// one by one. So the sums are those of a step that has twice as many micro-batches of half the
// size, in the same order; but for the weight of a head that is the embedding's, too, or whose loss is in
// chunks.
inline void run_in_halves(Step& step, Llama& model, const TensorOptions& tensor) {
    step.call_hooks({});
    const auto run = [&](int64_t m) {
        MicroBatch half(step, m);
        Saved saved;
        model.forward(half, saved);
        model.backward(half, saved);
    };
    for (int64_t m = 0; m < step.accumulated; m += 2)
        interleave([&] { run(m); },
                   [&] {
                       const TraceName lane(TraceName::lane, "phase, second half");
                       if (tensor.sequence_parallel) yield_to_other();
                       run(m + 1);
                   });
}

}  // namespace ultrascale::tensor_parallel
