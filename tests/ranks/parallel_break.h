// A small training with a technique of 01_data_parallel or 02_zero, for tests that break the
// technique on purpose.
#pragma once

#include "01_data_parallel/4_accumulation.h"
#include "01_data_parallel/lab/predict.h"
#include "02_zero/9_stages.h"
#include "02_zero/lab/predict.h"
#include "break_checks.h"
#include "core/threads.h"
#include "train/data.h"

namespace ultrascale {
using namespace ultrascale::data_parallel;
using namespace ultrascale::zero;

constexpr int64_t T = 24, B = 1, A = 2, steps = 3;  // sequence, micro-batch, micro-batches, steps
inline const LlamaConfig config{
    .layers = 2, .hidden = 32, .heads = 4, .kv_heads = 2, .head_dim = 8, .ffn = 48, .vocab = 256};
inline const StepShape shape{.config = config, .model = {}, .micro_batch = B, .seq = T};

inline const Communicator& world() { return Communicator::world(); }

// The parts of a step that train() below needs from both chapters.
struct Technique {
    Hooks* hooks;
    std::function<void()> begin_step = {}, update = {};
    std::function<void(int64_t m)> begin_micro_batch = {}, end_micro_batch = {};
    std::function<std::vector<TensorPart>()> gradients = {}, values = {};
    Prediction predicted;
};

// Runs a training like a chapter's main.
inline Checks train(const Options& options, Llama& model, const Technique& technique) {
    const TokenFile file("common/text.txt", config.vocab);
    const DataLoader loader(file, {.seq = T});
    const int64_t N = world().size(), G = A * B * N;
    testing::internal::CaptureStdout();
    Verifier verifier(options, config, loader, std::vector<int64_t>(size_t(steps), G));
    testing::internal::GetCapturedStdout();
    Report report("test", options, shape, steps);
    memory_reset_peak();
    world().barrier();
    communication_reset_counts();
    for (int64_t step = 0; step < steps; ++step) {
        technique.begin_step();
        const Tensor sums = Tensor::zeros({2}, DType::fp64, Memory::workspace),  // as Step::sums
            loss = sums.slice(0, 1);
        for (int64_t m = 0; m < A; ++m) {
            const Batch batch = to_device(loader.batch(step * G + (m * N + world().rank()) * B, B));
            Context context{.batch = batch,
                            .token_weight = float(1 / double(G * T)),
                            .loss = loss,
                            .micro_batch = int(m)};
            context.hooks = technique.hooks;
            Saved saved;
            technique.begin_micro_batch(m);
            model.forward({}, saved, context);
            model.backward({}, saved, context);
            technique.end_micro_batch(m);
        }
        if (step == 0) verifier.gradient(technique.gradients());
        technique.update();
        if (world().size() > 1) world().all_reduce(sums);
        verifier.after_step(step, loss.to_host<double>()[0], technique.values());
    }
    return checks_of(verifier, report, technique.predicted, steps);
}

inline Options options_of_runs() {
    Options options;
    options.optimizer.lr = 1e-3;
    return options;
}

// Lets a broken technique do something at the beginning of a micro-batch.
template <class Sync>
void begin_micro_batch(Sync& sync, ParameterList& parameters) {
    if constexpr (requires { sync.begin_micro_batch(parameters); })
        sync.begin_micro_batch(parameters);
}

// If `every_time`, gradients are summed after each micro-batch.
template <class Sync, class Sums = Accumulation, class... Arguments>
Checks train_accumulated(bool every_time, Arguments... arguments) {
    use_threads(ranks_on_this_node());
    const Options options = options_of_runs();
    Llama model(config, shape.model);
    ParameterList& parameters = model.parameters();
    parameters.allocate_values(DType::fp32);
    parameters.allocate_grads(DType::fp32);
    parameters.initialize(options.seed);
    AdamW optimizer(parameters, options.optimizer);
    const Mesh mesh(world(), {{"dp", world().size()}});
    Sync sync(parameters, mesh, arguments...);
    Sums sums(parameters, sync, every_time);
    Technique technique{.hooks = &sync,
                        .predicted = predict_one_device(shape, parameters.local_numel())};
    Prediction once;
    add_sums(once, sync, parameters, mesh, DType::fp32);
    technique.predicted += once.times(every_time ? A : 1);
    if (every_time) technique.predicted.memory.gradients *= 2;
    technique.predicted.communication.add_scalar_sum(world());  // the loss
    technique.begin_step = [&] { sums.begin_step(A); };
    technique.begin_micro_batch = [&](int64_t) { begin_micro_batch(sync, parameters); };
    technique.end_micro_batch = [&](int64_t m) { sums.end_micro_batch(m); };
    technique.update = [&] {
        optimizer.step(options.optimizer.lr, squared_gradient_norm(parameters));
    };
    technique.gradients = [&] { return parameters.parts(&Parameter::grad); };
    technique.values = [&] { return parameters.parts(&Parameter::value); };
    return train(options, model, technique);
}

template <class Sync, class... Arguments>
Checks train_data_parallel(Arguments... arguments) {
    return train_accumulated<Sync>(false, arguments...);
}

inline Checks train_zero(Updater& zero, Llama& model, const Mesh& mesh, const Options& options,
                         const ZeroOptions& zero_options) {
    zero.start();
    Tensor norm;
    Technique technique{.hooks = &zero, .predicted = predict(model, zero_options, shape, A, mesh)};
    technique.begin_step = [&] { zero.begin_step(A); };
    technique.begin_micro_batch = [&](int64_t m) { zero.begin_micro_batch(m, m + 1 == A); };
    technique.end_micro_batch = [&](int64_t) { zero.end_micro_batch(); };
    technique.update = [&] {
        zero.step(options.optimizer.lr, norm ? norm : zero.squared_norm());
        norm = {};
        zero.finish();
    };
    technique.gradients = [&] {
        norm = zero.squared_norm();  // completes them: over replicas they are summed here
        return zero.gradients();
    };
    technique.values = [&] { return zero.values(); };
    return train(options, model, technique);
}

template <class Stage>
Checks train_zero(ZeroOptions zero_options) {
    use_threads(ranks_on_this_node());
    const Options options = options_of_runs();
    Llama model(config, shape.model);
    const Mesh mesh(world(), data_axes(world().size(), zero_options));
    sum_over_replicas(model.parameters(), mesh);
    Stage zero(model.parameters(), units_of(model), mesh, options, zero_options);
    return train_zero(zero, model, mesh, options, zero_options);
}
template <class Plain>
Checks train_plain_zero(bool muon = false) {
    use_threads(ranks_on_this_node());
    Options options = options_of_runs();
    options.optimizer.muon = muon;
    Llama model(config, shape.model);
    const Mesh mesh(world(), {{"dp", world().size()}});
    Plain zero(model.parameters(), world(), options);
    return train_zero(zero, model, mesh, options, {.plain = true, .muon = muon});
}

}  // namespace ultrascale
