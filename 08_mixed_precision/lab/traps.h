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
    neighbours_scale,  // the forward product uses the scale of another tensor, or block
    hadamard_once,     // of nvfp4's dy and x only dy is transformed
    stale_weights,     // fp8 weights stay as they were before the update
};

// Multiplies each block of 32 in a row with the scale of the block before it.
struct NeighboursBlock : MxLinear {
    using MxLinear::MxLinear;

private:
    Tensor rounded(const Tensor& x, ops::BlockShape shape, ops::BlockFormat format) const override {
        const Tensor y = MxLinear::rounded(x, shape, format);
        if (shape != along || format != numbers) return y;
        const std::vector<float> exact = x.to_host_float();
        std::vector<float> spoilt = y.to_host_float();
        float before = 0;
        for (size_t block = 0; block + 32 <= exact.size(); block += 32) {
            float amax = 0;
            for (size_t i = block; i < block + 32; ++i) amax = std::max(amax, std::abs(exact[i]));
            const float scale = std::exp2(std::ceil(std::log2(std::max(amax, 1e-30f) / 448)));
            for (size_t i = block; before > 0 && i < block + 32; ++i) spoilt[i] *= before / scale;
            before = scale;
        }
        ops::copy(y, Tensor::from_host<float>(spoilt, y.shape(), Memory::workspace));
        return y;
    }
};

// Transforms only the operand that is rounded stochastically, dy.
struct HadamardOnce : Nvfp4Linear {
    using Nvfp4Linear::Nvfp4Linear;

private:
    Numbers rounded(const Tensor& x, ops::BlockRounding how) const override {
        if (!how.random) how.hadamard.reset();
        return Nvfp4Linear::rounded(x, how);
    }
};
struct SpoiltBlocks : Fp8Shared {
    using Fp8Shared::Fp8Shared;
    std::unique_ptr<Linear> linear_of_blocks(std::vector<Parameter*> rows) const override {
        const Recipe& r = options.recipe;
        if (r.products == Products::nvfp4)
            return std::make_unique<HadamardOnce>(std::move(rows), r.nvfp4, options.seed);
        return std::make_unique<NeighboursBlock>(std::move(rows), options.gradient_format,
                                                 r.round_up);
    }
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
    if (precision.recipe.blocks())
        shared = std::make_shared<SpoiltBlocks>(precision);
    else if (trap == Trap::neighbours_scale)
        shared = std::make_shared<NeighboursScale>(precision);
    return std::make_unique<SpoiledTraining>(trap, shape.config, shape.model, precision, options,
                                             watch, shared);
}

}  // namespace ultrascale::mixed_precision
