// On rung 3, after 5_async_backward.h, and instead of 6_chunked_linear.h: a micro-batch runs as two
// halves, each with half of the sequences. They are independent, so one of them computes while the
// other one communicates. A layer's regions, of attention and of the feed-forward:
//
//     forward,      compute   [attention 1 + 2    ]                     [feed-forward 1 + 2 ]
//     in one piece  network                        [sum 1 + 2          ]
//
//     forward,      compute   [attention 1][attention 2][feed-fwd. 1][feed-fwd. 2][attention 1]
//     in halves     network                [sum 1      ][sum 2      ][sum 1      ][sum 2      ]
//
//     backward,     compute   [feed-fwd. 1][feed-fwd. 2][attention 1][attention 2][feed-fwd. 1]
//     in halves     network                [sum of dX 1][sum of dX 2][sum of dX 1][sum of dX 2]
//
// (In backward a region stands for dW of the region before, and then all up to its own dX.) So a
// sum may take as long as the other half's whole region. Of each pair of halves only the first and
// the last sum stay exposed. A half's turn ends where it would wait (ParallelRegion::wait), and in
// backward between a column linear's dX and its dW. The other half then goes on from where its own
// turn had ended (train/interleave.h).
//
// On rung 2 there is only a norm between a reduce-scatter and the next all-gather, which is too
// short to hide either. So in forward a turn also ends after a column linear's product, so that a
// region has three turns, and the second half is one turn behind. Each communication then runs
// under the other half's next turn:
//
//     half 1    [norm    ]         [column  ]          [row     ]         [norm    ]
//     half 2              [row    ]          [norm    ]          [column ]          [row    ]
//     network             [gather1][scatter2]          [gather2 ][scatt.1]          [gather1]
//
// ("Row" is all that follows the column linear's product, up to the row linear's.) In backward a
// region has two turns: all up to dX, whose sum then begins; and dW with the norm behind it, after
// which the gather of dy for the next region begins.
//
// This has a price. A product of half as many rows is less efficient, each communication has half
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

// Runs forward and backward of a step's micro-batches, each of which is half of one; their number
// is even. Gradients are added up half by half: the sums are those of a step that has twice as many
// micro-batches of half the size, in the same order, except for a head's weight if it is tied to
// the embedding, or if its loss is in chunks.
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
                       if (tensor.sequence_parallel) yield_to_other();
                       run(m + 1);
                   });
}

}  // namespace ultrascale::tensor_parallel
