// A short training in which a test replaces parts of the model, and the verdicts of --verify and
// the memory check.
#pragma once

#include <gtest/gtest.h>

#include "lab/verify/verify.h"
#include "train/gradients.h"
#include "train/setup.h"

namespace ultrascale::broken {

struct Checks {
    bool verified, memory;
    std::string printed = "";  // verify's output
};

inline constexpr int64_t T = 24, B = 2;

// The model and the data of the training.
struct Setting {
    LlamaConfig config{.layers = 2,
                       .hidden = 32,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 8,
                       .ffn = 48,
                       .vocab = 256};
    DType dtype = DType::fp32;
    double lr = 1e-3;
    int64_t steps = 3, warmup = 0;
};

// Runs the training of a chapter's main, with a model whose parts `change` has modified. The
// numbers break the step itself.
inline Checks train(const std::function<void(ModuleFactories&)>& change, double loss_scale = 1,
                    double lr_scale = 1, int64_t shifted_samples = 0, const Setting& setting = {}) {
    Options options;
    options.optimizer.lr = setting.lr;
    options.optimizer.warmup = setting.warmup;
    options.dtype = setting.dtype;
    const LlamaConfig& config = setting.config;
    const StepShape shape{.config = config,
                          .model = {.dtype = setting.dtype},
                          .grad_dtype = setting.dtype,
                          .micro_batch = B,
                          .seq = T};
    const TokenFile file("common/text.txt", config.vocab);
    const DataLoader loader(file, {.seq = T});

    ModuleFactories factories = default_factories(config, shape.model);
    change(factories);
    Llama model(config, shape.model, factories, Stage::whole(config));
    model.parameters().allocate_values(setting.dtype);
    model.parameters().allocate_grads(setting.dtype);
    model.parameters().initialize(options.seed);
    AdamW optimizer(model.parameters(), options.optimizer);
    const std::vector<int64_t> sizes(size_t(setting.steps), 2 * B);
    Checks checks{};
    {
        testing::internal::CaptureStdout();
        Verifier verifier(options, config, loader, sizes);
        testing::internal::GetCapturedStdout();
        Report report("test", options, shape, setting.steps);
        memory_reset_peak();
        for (int64_t step = 0; step < setting.steps; ++step) {
            model.parameters().begin_gradients(2);
            const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
            for (int64_t m = 0; m < 2; ++m) {
                const Batch batch =
                    to_device(loader.batch((2 * step + m) * B + shifted_samples, B));
                Context context{.batch = batch,
                                .token_weight = float(loss_scale / double(2 * B * T)),
                                .loss = loss,
                                .micro_batch = int(m)};
                Saved saved;
                model.forward({}, saved, context);
                model.backward({}, saved, context);
            }
            if (step == 0) verifier.gradient(model.parameters().parts(&Parameter::grad));
            optimizer.step(learning_rate(options.optimizer, step) * lr_scale,
                           squared_gradient_norm(model.parameters()));
            verifier.after_step(step, loss.to_host<double>()[0],
                                model.parameters().parts(&Parameter::value));
        }
        testing::internal::CaptureStdout();
        checks.verified = verifier.finish(report);
        checks.printed = testing::internal::GetCapturedStdout();
        testing::internal::CaptureStdout();
        checks.memory = report.memory(predict_one_device(shape, model.parameters().local_numel()));
        testing::internal::GetCapturedStdout();
    }
    return checks;
}

inline void expect(const Checks& checks, bool verified, bool memory) {
    EXPECT_EQ(checks.verified, verified) << checks.printed;
    EXPECT_EQ(checks.memory, memory);
}

// Replaces the linear whose first parameter's name ends with `ending`.
template <class Broken>
auto linear(const std::string& ending) {
    return [ending](ModuleFactories& factories) {
        factories.linear =
            [ending, original = factories.linear](
                ParameterList& list, const ModuleFactories& all, const ModulePath& path,
                LinearRole role,
                const ModuleFactories::LinearShape& shape) -> std::unique_ptr<Linear> {
            auto unbroken = original(list, all, path, role, shape);  // registers the parameters
            if (!path.part(shape.rows.front().first).weight().ends_with(ending)) return unbroken;
            std::vector<Parameter*> rows;
            for (const auto& [part, size] : shape.rows)
                rows.push_back(list.find(path.part(part).weight()));
            return std::make_unique<Broken>(rows);
        };
    };
}

template <class Broken>
void norm(ModuleFactories& factories) {
    factories.norm = [original = factories.norm](ParameterList& list,
                                                 const ModulePath& path) -> std::unique_ptr<Norm> {
        original(list, path);
        Parameter* weight = list.find(path.weight());
        if (!path.name.ends_with("layers.1.input_layernorm"))
            return std::make_unique<Norm>(weight, 1e-5f);
        return std::make_unique<Broken>(weight, 1e-5f);
    };
}

template <class Broken>
void attention(ModuleFactories& factories) {
    factories.attention = [](const ModulePath&) { return std::make_unique<Broken>(); };
}

}  // namespace ultrascale::broken
