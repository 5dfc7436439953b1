// --fresh-grads: a unit's gradients are allocated when its backward begins, and freed after the
// update. (PyTorch's zero_grad(set_to_none=True) does so.) Memory is highest at the end of forward,
// when there are no gradients yet; they grow while the activations are freed:
//
//     activations   ..xxXXXXXXXXxx..          ..xxXXXXXXXXxx..
//     gradients              ..ggGGGG|                 ..ggGGGG|          | the update
//                   forward  backward         forward  backward
//
// If the activations are the larger part, this saves nearly all gradients at the peak. If a step
// has several micro-batches, it saves nothing: the first one's gradients exist during the forwards
// of the others.
#pragma once

#include <vector>

#include "model/llama.h"

namespace ultrascale::single_gpu {

class FreshGradients : public Hooks {
public:
    explicit FreshGradients(DType dtype) : dtype_(dtype) {}

    void before(const Unit& unit, Pass pass, const Context& context) override {
        const bool adds = pass != Pass::forward || (unit.gradients_in_forward && context.training);
        if (adds) allocate(unit);
    }
    // Frees the gradients, after the update.
    void free(const ParameterList& parameters) const {
        for (const auto& parameter : parameters) parameter->grad = {};
    }

private:
    // Allocates one tensor for all of the unit's parameters that have no gradient yet. (A tied head
    // allocates the embedding's gradient, so the embedding finds it there.)
    void allocate(const Unit& unit) const {
        std::vector<Parameter*> missing;
        for (Parameter* parameter : unit.parameters)
            if (!parameter->grad) missing.push_back(parameter);
        if (missing.empty()) return;
        bind_to_flat(missing, Tensor::empty({local_numel(missing)}, dtype_, Memory::gradient),
                     &Parameter::grad);
    }
    DType dtype_;
};

}  // namespace ultrascale::single_gpu
