// Before the first step on a GPU, each rank runs all kernels that it will launch, once and alone.
//
// CUDA loads a kernel when it is first launched, and for that it may wait until the device is idle.
// But here a stream may be waiting for a message that another rank sends only after it has received
// one of this rank's next messages, which this rank would launch after the loading: neither could
// ever continue. (CUDA's programming guide, "Lazy loading", describes it for kernels that wait for
// each other.) The host also waits for the device when it times cuBLAS's kernels for a product that
// it meets for the first time. After this run every kernel is loaded and chosen.
//
// The first micro-batch's gradients of weights are stored, the next one's are added to them. These
// are different products, so each chunk runs two micro-batches.
#pragma once

#include "../3_stages.h"
#include "comm/comm.h"
#include "core/device.h"
#include "core/memory.h"
#include "core/trace.h"
#include "train/step.h"

namespace ultrascale::pipeline {

// Lends storage to parameters that have none yet (those that 02_zero gathers and reduces around
// their use). Its destructor restores their state.
class ScratchStorage {
public:
    ScratchStorage(ParameterList& parameters, DType values, DType grads) : parameters_(parameters) {
        for (const auto& p : parameters) before_.push_back(*p);
        lend(&Parameter::value, values);
        lend(&Parameter::grad, grads);
    }
    ~ScratchStorage() {
        for (size_t i = 0; i < before_.size(); ++i) **(parameters_.begin() + long(i)) = before_[i];
    }
    ScratchStorage(const ScratchStorage&) = delete;

private:
    // They lie one after the other, since some must be neighbours (q, k, v).
    void lend(Tensor Parameter::*member, DType dtype) {
        std::vector<Parameter*> missing;
        for (const auto& p : parameters_)
            if (!((*p).*member)) missing.push_back(p.get());
        if (missing.empty()) return;
        bind_to_flat(missing, Tensor::zeros({local_numel(missing)}, dtype, Memory::workspace),
                     member);
    }
    ParameterList& parameters_;
    std::vector<Parameter> before_;
};

// `shape` and `dtype` are those of a message, (B, T, h). Afterwards everything is as before:
// nothing was counted, and no gradient has begun.
inline void load_kernels(RankStages& stages, const Schedule& schedule, Step& step,
                         const Shape& shape, DType dtype) {
    const Untraced untraced;
    const CommunicationCounts counts = communication_counts();
    const auto uses = [&](ActionKind kind) {
        return std::ranges::any_of(schedule.actions, [kind](const auto& actions) {
            return std::ranges::find(actions, kind, &Action::kind) != actions.end();
        });
    };
    const auto message = [&] { return Tensor::zeros(shape, dtype, Memory::activation); };
    {
        const ScratchStorage lent(stages.parameters(), dtype, stages.grad_dtype());
        for (int c = 0; c < stages.chunks(); ++c)
            for (const bool split : {false, true}) {
                if (!uses(split ? ActionKind::backward_weight : ActionKind::backward)) continue;
                Llama& model = stages.chunk(c);
                const bool first = stages.stage(c) == 0,
                           last = stages.stage(c) + 1 == schedule.stages;
                stages.parameters().begin_gradients(2);
                for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
                    Context context = step.micro_batch(0);
                    context.hooks = nullptr;
                    context.loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
                    Saved saved;
                    model.forward(first ? Tensor() : message(), saved, context);
                    Tensor dy = last ? Tensor() : message();
                    if (split) {
                        model.backward_input(std::move(dy), saved, context);
                        model.backward_weight(saved, context);
                    } else {
                        model.backward(std::move(dy), saved, context);
                    }
                }
            }
    }
    communication_set_counts(counts);
    memory_reset_peak();
}

}  // namespace ultrascale::pipeline
