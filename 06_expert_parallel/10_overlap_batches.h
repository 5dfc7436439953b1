// Hides the rows' travel under the computation of another micro-batch (--overlap batches). A layer
// has little to compute while its rows travel, as most of what follows needs them. But the backward
// of one micro-batch and the forward of the next are independent. So they take turns
// (train/interleave.h): when one has sent rows off, the other one computes until it has sent off
// its own. Here each passes a layer (not the same one: backward begins with the last, forward with
// the first); D is a dispatch and C a combine, of rows or (') of gradients:
//
//     backward   compute  ....[ experts' ]....[ attention' ]
//                network  [D']            [C']
//     forward    compute  [ attention ]...[ experts ]...
//                network               [D]           [C]
//
//     together   compute  [ attention ][ experts' ][ experts ][ attention' ][ attention ] and
//                network  [    D'     ][    D     ][   C'    ][     C      ][     D'    ] so on
//
// Every transfer of rows has a computation above it, and is hidden if it takes no longer. If a
// layer's forward takes S seconds, half of them for attention and half for the experts, that is
//
//     T k h e (n-1)/n / (bytes a second)  <=  S / 2      T tokens, k choices, e bytes a number
//
// (with --dispatch rank n p rows a token instead of k; see the README). 4 x 4096 tokens, k = 6, h =
// 2048, bf16, two ranks and S = 5.3 ms (MEASURED.md) make 192 MiB in 2.65 ms: 76 GB/s. The small
// exchange of counts, for which the host waits, stays exposed.
//
// Two micro-batches are in flight, but while one's forward keeps the activations of a layer, the
// other's backward frees those of one: the peak is little more than that of one. DeepSeek-V3's
// DualPipe (arXiv 2412.19437, section 3.2.1) is a pipeline's schedule made of such pairs;
// 05_pipeline has it, and a 1F1B of pairs.
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
