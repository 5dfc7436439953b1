// --fresh-grads: a unit's gradients are allocated when its backward begins, and freed after the
// update. (PyTorch's zero_grad(set_to_none=True) does so.) Memory is highest where forward ends,
// and there are no gradients then; they grow while the activations fall:
//
//     activations   ..xxXXXXXXXXxx..          ..xxXXXXXXXXxx..
//     gradients              ..ggGGGG|                 ..ggGGGG|          | the update
//                   forward  backward         forward  backward
//
// What is saved at the peak is nearly all gradients if the activations are the larger part, nothing
// if a step has several micro-batches, because the gradients of the first one exist in the forwards
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
    // After the update.
    void free(const ParameterList& parameters) const {
        for (const auto& parameter : parameters) parameter->grad = {};
    }

private:
    // One tensor for all of the unit's parameters that have no gradient yet (a tied head finds its
    // embedding's place empty, and the embedding finds it taken).
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
