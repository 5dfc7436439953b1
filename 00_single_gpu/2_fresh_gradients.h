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

#include <algorithm>

#include "lab/predict/estimate.h"
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

// The most that activations and gradients are together in a step of so many micro-batches, in
// bytes. Towards the first layer each layer's backward frees what its forward kept, and adds its
// gradients.
inline int64_t predicted_activations_and_gradients(const StepShape& shape, int64_t micro_batches) {
    const LlamaConfig& c = shape.config;
    const auto highest = [](const std::vector<ActivationMoment>& moments, size_t first,
                            size_t last) {
        double most = 0;
        for (size_t m = first; m < last; ++m) most = std::max(most, moments[m].bytes());
        return most;
    };
    const double each = double(dtype_bytes(shape.grad_dtype)),
                 all = each * double(parameter_count(c)),
                 embedding = each * double(c.vocab * c.hidden),
                 head = embedding + each * double(c.hidden),
                 layer = (all - head - (c.tied ? 0 : embedding)) / double(c.layers);
    LocalSizes sizes = local_sizes(shape);
    sizes.embedding = false;
    const std::vector<ActivationMoment> with_head = activation_moments(sizes);
    sizes.head = false;
    // The head's moments are the first ones; gradients exist in the last of them.
    const size_t head_moments = with_head.size() - activation_moments(sizes).size();
    double most = std::max(highest(with_head, 0, head_moments),
                           highest(with_head, head_moments - 1, head_moments) + head);
    for (int64_t done = 0; done < c.layers; ++done) {
        sizes.layers = c.layers - done;
        const std::vector<ActivationMoment> moments = activation_moments(sizes);
        most =
            std::max(most, highest(moments, 0, moments.size()) + head + double(done + 1) * layer);
    }
    const double dx = double(shape.micro_batch * shape.seq * c.hidden) *
                      double(dtype_bytes(shape.model.dtype));  // in the embedding's backward
    most = std::max(most, all + dx);
    if (micro_batches > 1)
        most = std::max(most, all + double(peak_activation_bytes(local_sizes(shape))));
    return int64_t(std::min(most, 9e18));
}

}  // namespace ultrascale::single_gpu
