// A model in a recipe, with all that a training step works on. A run with --verify has two of them:
// its own, and the one that rank 0 trains by itself for comparison (reference.h).
#pragma once

#include "4_loss_scale.h"
#include "7_fused_quantisation.h"
#include "7_kept_in_fp8.h"
#include "8_mixed_adamw.h"
#include "9_fp8_all_reduce.h"
#include "fp8_parts.h"
#include "train/updater.h"

namespace ultrascale::mixed_precision {

class MixedTraining : public Updater {
public:
    // `watch` may wrap the model's parts, for example to count what passes through them; `shared`
    // may multiply in another way.
    MixedTraining(const LlamaConfig& config, const ModelOptions& model_options,
                  const PrecisionOptions& chosen, const Options& run_options,
                  const std::function<void(ModuleFactories&)>& watch = {},
                  std::shared_ptr<Fp8Shared> shared = {})
        : options(chosen),
          linears(shared ? shared : std::make_shared<Fp8Shared>(chosen)),
          model(config, model_options, factories(config, model_options, watch),
                Stage::whole(config)),
          storage(model.parameters(), chosen.recipe, linears.parameters()),
          loss_scale(chosen.loss_scale, model.parameters()),
          fp8_sum(chosen.sum_scaling, is_fp8(chosen.recipe.read()), model.parameters(),
                  Communicator::world().size()),
          optimizer(storage, chosen.recipe, run_options.optimizer, chosen.seed),
          run_options_(run_options) {
        linears.allocate(model.parameters());
    }

    const PrecisionOptions options;
    Fp8Linears linears;
    Llama model;
    Storage storage;
    LossScale loss_scale;
    Fp8AllReduce fp8_sum;
    MixedAdamW optimizer;

    void begin_step(int64_t micro_batches) override {
        model.parameters().begin_gradients(micro_batches);
        storage.begin_step();
    }
    // Rounds the step's gradients to the format that is sent, and sums them over the ranks.
    void sum_gradients(const Mesh& mesh) {
        explain("gradients: rounded to what is sent, and summed over dp");
        phase("sum gradients", [&] { sum_rounded_gradients(mesh.group("dp")); });
    }
    // Divides the gradients by the loss scale. The ranks agree on whether any gradient overflowed.
    virtual void unscale(double scale, const Mesh& mesh) {
        phase("agree", [&] { loss_scale.agree(storage.gradients(), mesh.group("dp")); });
        phase("unscale", [&] { storage.unscale(scale); });
    }
    // AdamW clips by the gradients' own norm. Then the weights that it has not rounded are rounded.
    void update(double lr, const Tensor& squared_norm) override {
        optimizer.step(lr, squared_norm, loss_scale.skip());
        round_those_left();
    }
    // Called after the update, when the host waits anyway. Returns whether the update was skipped.
    bool end_step(int64_t step, const Mesh& mesh) {
        linears.histories().end_step(mesh.group("dp"));
        fp8_sum.end_step();
        const bool skipped = loss_scale.end_step(step);
        if (skipped) optimizer.take_back();
        return skipped;
    }

    // ---- the start ----
    TrainingState start() override {
        const Options& from = run_options_;
        ParameterList& parameters = model.parameters();
        std::vector<TensorPart> weights;
        for (const auto& p : parameters)
            weights.emplace_back(*p,
                                 Tensor::empty(p->local_shape(), DType::fp32, Memory::workspace));
        if (!from.load.empty())
            load_parameters(from.load, weights);
        else
            for (size_t i = 0; i < weights.size(); ++i)
                draw(**(parameters.begin() + std::ptrdiff_t(i)), 0, weights[i].tensor, from.seed);
        // As in 00_single_gpu, all begin with weights that their activations' dtype can hold.
        for (TensorPart& weight : weights) {
            check_range(weight, from.load);
            const Tensor narrow =
                Tensor::empty(weight.tensor.shape(), options.recipe.activations, Memory::workspace);
            ops::copy(narrow, weight.tensor), ops::copy(weight.tensor, narrow);
        }
        set_weights(weights);
        check_recipe(from);
        TrainingState state = resume_or_start(from, states());
        state.recipe = formats_of_states(options.recipe);
        resume(state.step);
        return state;
    }
    // Sets the weights from fp32, rounded to all formats.
    void set_weights(const std::vector<TensorPart>& weights) {
        for (Storage::StoredParameter& h : storage.all()) {
            const auto found = std::ranges::find(weights, h.parameter->name, &TensorPart::name);
            check(found != weights.end(), "a weight is missing");
            Storage::set_exact(h, found->tensor);
        }
        weights_from_masters();
    }
    // Called after the states were read.
    void resume(int64_t steps) {
        optimizer.set_steps_done(steps);
        loss_scale.resume();
        fp8_sum.resume();
        linears.histories().resume();
        weights_from_masters();
    }
    std::vector<TensorPart> gradients() override { return storage.unscaled_gradients(); }
    std::vector<TensorPart> values() override { return storage.exact_weights(); }
    std::vector<TensorPart> states() override {
        std::vector<TensorPart> all = optimizer.states();
        for (const TensorPart& buffer : model.parameters().buffers()) all.push_back(buffer);
        return all;
    }
    bool overflowed() const override { return loss_scale.skips(); }

protected:
    void round_those_left() {
        for (Storage::StoredParameter& h : storage.all())
            if (h.value_later() && !is_fp8(h.value.dtype())) ops::copy(h.value, Storage::exact(h));
        linears.round_weights(storage);
    }

private:
    Tensor sum_squares() override { return storage.squared_norm(); }
    void weights_from_masters() {
        for (Storage::StoredParameter& h : storage.all())
            if (h.recipe->master && !h.value_later()) ops::copy(h.value, h.master);
        round_those_left();
    }
    // A training's states are in the formats of its recipe.
    void check_recipe(const Options& from) const {
        if (from.load.empty() || !has_training_state(from.load)) return;
        const std::string saved = load_training_state(from.load).recipe,
                          own = formats_of_states(options.recipe);
        if (!saved.empty() && saved != own)
            user_error("--recipe {}: the run in {} was trained with --recipe {}", own, from.load,
                       printable(saved));
    }
    void check_range(const TensorPart& weight, const std::string& file) const {
        if (options.recipe.activations != DType::fp16) return;
        for (float x : weight.tensor.to_host<float>())
            if (std::abs(x) > formats::Fp16::largest())
                user_error(
                    "--load {}: {} has a value of {:g}, but fp16 ends at 65504; a recipe in bf16 "
                    "can hold it",
                    file, weight.name, double(x));
    }
    void sum_rounded_gradients(const Communicator& ranks) {
        storage.round_gradients();
        std::vector<Tensor> fp8, scales, sums;
        for (const Storage::StoredParameter& h : storage.all()) {
            if (!is_fp8(h.read().dtype())) continue;
            fp8.push_back(h.gradient), scales.push_back(h.gradient_scale);
            sums.push_back(h.accumulated);
        }
        if (!fp8.empty()) fp8_sum(fp8, scales, sums, ranks);
        for (const Storage::StoredParameter& h : storage.all())
            if (!is_fp8(h.read().dtype()) && ranks.size() > 1) ranks.all_reduce(h.read());
    }
    ModuleFactories factories(const LlamaConfig& config, const ModelOptions& model_options,
                              const std::function<void(ModuleFactories&)>& watch) {
        ModuleFactories factories = default_factories(config, model_options);
        linears.add_to(factories, config.layers);
        const bool fuses =
            options.recipe.fp8() && !options.recipe.only_multiplies() && !options.unfused;
        if (fuses) fuse_quantisation(factories, linears);
        keep_in_fp8(factories, config, options, linears);
        if (watch) watch(factories);
        return factories;
    }

    const Options run_options_;
};

}  // namespace ultrascale::mixed_precision
