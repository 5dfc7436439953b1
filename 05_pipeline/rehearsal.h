// Before the first step on a GPU, each rank runs all that it will launch, once and for itself.
//
// CUDA loads a kernel when it is first launched, and for that it may wait until the device is idle.
// But here a stream may be waiting for a message that another rank sends only after it has received
// one of this rank's next messages, which this rank would launch after the loading: nobody could
// ever go on. (CUDA's programming guide, "Lazy loading", describes it for kernels that wait for
// each other.) After the rehearsal everything is loaded, and the products' algorithms are chosen.
#pragma once

#include "core/device.h"
#include "core/trace.h"
#include "stages.h"
#include "train/step.h"

namespace ultrascale {

// `shape`, `dtype`: of a message, (B, T, h). Gradients begin anew.
inline void rehearse(RankStages& stages, const Schedule& schedule, Step& step, const Shape& shape,
                     DType dtype) {
    const Untraced untraced;
    const auto uses = [&](ActionKind kind) {
        return std::ranges::any_of(schedule.actions, [kind](const auto& actions) {
            return std::ranges::find(actions, kind, &Action::kind) != actions.end();
        });
    };
    const auto message = [&] { return Tensor::zeros(shape, dtype, Memory::activation); };
    for (int c = 0; c < stages.chunks(); ++c)
        for (const bool split : {false, true}) {
            if (!uses(split ? ActionKind::backward_weight : ActionKind::backward)) continue;
            Llama& model = stages.chunk(c);
            stages.parameters().begin_gradients();
            Context context = step.micro_batch(0);
            context.hooks = nullptr;
            context.loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
            Saved saved;
            const bool first = stages.stage(c) == 0, last = stages.stage(c) + 1 == schedule.stages;
            model.forward(first ? Tensor() : message(), saved, context);
            Tensor dy = last ? Tensor() : message();
            if (split) {
                model.backward_input(std::move(dy), saved, context);
                model.backward_weight(saved, context);
            } else {
                model.backward(std::move(dy), saved, context);
            }
        }
    stages.parameters().begin_gradients(step.accumulated / schedule.copies());
}

}  // namespace ultrascale
