// --trap: deliberate mistakes, each as a training, or a product, that does one thing wrong.
#pragma once

#include <memory>

#include "../mixed_training.h"

namespace ultrascale::mixed_precision {

enum class Trap {
    none,
    unscale_twice,     // gradients are divided by the loss scale twice
    one_steps,         // the last rank does not skip a step that all others skip
    clip_scaled,       // the norm for clipping is that of the scaled gradients
    neighbours_scale,  // the forward product uses the scale of another tensor
    stale_weights,     // fp8 weights stay as they were before the update
};

// Multiplies each x with the scales of the x before it, if these have the same shape.
struct NeighboursScale : Fp8Shared {
    using Fp8Shared::Fp8Shared;
    void multiply(Tensor y, const ops::Quantised& x, const ops::Quantised& w,
                  const Tensor& residual) override {
        const Tensor before = std::exchange(last_, x.scales);
        const bool fits = before && before.shape() == x.scales.shape();
        Fp8Shared::multiply(y, {x.values, fits ? before : x.scales}, w, residual);
    }

private:
    Tensor last_;
};

class SpoiledTraining : public MixedTraining {
public:
    template <class... Arguments>
    SpoiledTraining(Trap trap, Arguments&&... training)
        : MixedTraining(std::forward<Arguments>(training)...), trap_(trap) {}

    void unscale(double scale, const Mesh& mesh) override {
        if (trap_ == Trap::clip_scaled) norm_of_scaled_ = storage.squared_norm();
        MixedTraining::unscale(trap_ == Trap::unscale_twice ? scale * scale : scale, mesh);
    }
    void update(double lr, const Tensor& squared_norm) override {
        const Communicator& world = Communicator::world();
        const bool steps = trap_ == Trap::one_steps && world.rank() + 1 == world.size();
        optimizer.step(lr, norm_of_scaled_ ? norm_of_scaled_ : squared_norm,
                       steps ? Tensor() : loss_scale.skip());
        if (trap_ != Trap::stale_weights) round_those_left();
    }

private:
    Trap trap_;
    Tensor norm_of_scaled_;
};

inline std::unique_ptr<MixedTraining> make_training(
    Trap trap, const StepShape& shape, const PrecisionOptions& precision, const Options& options,
    const std::function<void(ModuleFactories&)>& watch) {
    if (trap == Trap::none)
        return std::make_unique<MixedTraining>(shape.config, shape.model, precision, options,
                                               watch);
    std::shared_ptr<Fp8Shared> shared;
    if (trap == Trap::neighbours_scale) shared = std::make_shared<NeighboursScale>(precision);
    return std::make_unique<SpoiledTraining>(trap, shape.config, shape.model, precision, options,
                                             watch, shared);
}

}  // namespace ultrascale::mixed_precision
