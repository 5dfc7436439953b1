// Hides the way of the rows under the computation of another micro-batch (--overlap batches). A
// layer cannot compute while its rows travel, as all that follows needs them. But the backward of
// one micro-batch and the forward of the next need nothing of each other. So they take turns
// (train/interleave.h): when one has sent rows off, the other one computes until it has sent off
// its own. Here they pass a layer, D being a dispatch and C a combine, of rows or (') of gradients:
//
//     backward   compute  ....[ experts' ]....[ attention' ]
//                network  [D']            [C']
//     forward    compute  [ attention ]...[ experts ]...
//                network               [D]           [C]
//
//     together   compute  [ attention ][ experts' ][ experts ][ attention' ][ attention ] next
//                network  [    D'     ][    D     ][   C'    ][     C      ][     D'    ] layers
//
// Every transfer has a computation above it, and nothing is exposed if it takes no longer than that.
// If attention and experts take equally long, that is half of a layer's forward, F seconds:
//
//     T k h e (n-1)/n / (bytes a second)  <=  F / 2      T tokens, k choices, e bytes a number
//
// Two micro-batches are in flight, but while one's forward keeps the activations of a layer, the
// other's backward frees those of one. DeepSeek-V3's DualPipe (arXiv 2412.19437, section 3.2.1) is a
// pipeline's schedule made of such pairs; 05_pipeline has it, and a 1F1B of pairs.
#pragma once

#include <optional>

#include "model/llama.h"
#include "train/interleave.h"
#include "train/step.h"

namespace ultrascale::expert_parallel {

// Runs the forwards and backwards of a step's micro-batches, each backward beside the next forward:
// F0 D0+F1 D1+F2 ... D(m-1).
inline void run_interleaved(Step& step, Llama& model) {
    struct InFlight {
        Context batch;
        Saved saved;
    };
    step.call_hooks({});
    std::optional<InFlight> before;
    for (int64_t m = 0; m < step.accumulated; ++m) {
        InFlight now{.batch = step.micro_batch(m)};
        interleave(
            [&] {
                if (before) model.backward(before->batch, before->saved);
            },
            [&] { model.forward(now.batch, now.saved); });
        before = std::move(now);
    }
    model.backward(before->batch, before->saved);
}

}  // namespace ultrascale::expert_parallel
