// Two ways to hold less in a step: 02_zero's layer inputs on the host, and 00_single_gpu's
// gradients that are allocated when they appear. Neither changes a bit, both save the predicted
// memory, and their mistakes are detected.
#include "00_single_gpu/2_fresh_gradients.h"
#include "02_zero/7_offload_activations.h"
#include "lab/predict/estimate.h"
#include "llama_runs.h"

namespace ultrascale::test {
using namespace ultrascale::single_gpu;
using namespace ultrascale::zero;
namespace {

constexpr int64_t B = 2, T = 9;
const ModelOptions recomputed{.recompute = Recompute::full};

LlamaConfig four_layers(bool tied = false) {
    LlamaConfig config = small(tied);
    config.layers = 4;
    return config;
}
std::vector<HostBatch> two_batches() { return {random_batch(B, T, 3), random_batch(B, T, 5)}; }

int64_t now(Memory category) { return memory_now()[size_t(category)]; }

TEST(ActivationsOnHost, ChangeNoBitAndTakeTheFormulasMemory) {
    const LlamaConfig config = four_layers();
    const std::unique_ptr<Llama> plain = make(config, recomputed);
    const Result expected = run(*plain, two_batches());

    const int64_t host_before = now(Memory::host), before = now(Memory::activation);
    ActivationsOnHost inputs(config.layers);
    ModuleFactories factories = default_factories(config, recomputed);
    factories.checkpoint = inputs.checkpoints();
    const std::unique_ptr<Llama> model = make(config, recomputed, factories, Stage::whole(config));
    memory_reset_peak();
    EXPECT_EQ(run(*model, two_batches()), expected);
    LocalSizes sizes =
        local_sizes({.config = config, .model = recomputed, .micro_batch = B, .seq = T});
    const int64_t all_kept = peak_activation_bytes(sizes);
    sizes.checkpoints_on_host = true;
    const int64_t input = B * T * config.hidden * 4;
    EXPECT_EQ(memory_peak_by_category()[size_t(Memory::activation)] - before,
              peak_activation_bytes(sizes));
    EXPECT_EQ(all_kept - peak_activation_bytes(sizes), 2 * input);  // two of the three inputs
    EXPECT_EQ(now(Memory::host) - host_before, 3 * input);
    EXPECT_EQ(inputs.bytes_to_host(), 2 * 3 * input);
    EXPECT_EQ(inputs.bytes_to_device(), 2 * 3 * input);
}

TEST(ActivationsOnHost, RefuseTwoLayersInOnePlace) {
    const LlamaConfig config = four_layers();
    ActivationsOnHost inputs(config.layers);
    ModuleFactories factories = default_factories(config, recomputed);
    factories.checkpoint = [make = inputs.checkpoints()](const ModulePath&) {
        return make(ModulePath{0, ""});
    };
    const std::unique_ptr<Llama> model = make(config, recomputed, factories, Stage::whole(config));
    EXPECT_THROW(run(*model, two_batches()), std::logic_error);
}

// Returns the sum of the gradients of both micro-batches; with `free_between` the first one's are
// lost.
Result with_fresh_gradients(const LlamaConfig& config, const ModelOptions& options,
                            bool free_between) {
    Llama model(config, options);
    ParameterList& parameters = model.parameters();
    parameters.allocate_values(options.dtype);
    parameters.initialize(1);
    FreshGradients fresh(options.dtype);
    const int64_t before = now(Memory::gradient);
    parameters.begin_gradients(2);
    const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
    const std::vector<HostBatch> batches = two_batches();
    for (size_t m = 0; m < 2; ++m) {
        Context context = context_of(batches, m, loss, &fresh);
        Saved saved;
        model.forward({}, saved, context);
        const int64_t after_forward = now(Memory::gradient) - before;
        EXPECT_EQ(after_forward == 0, (m == 0 || free_between) && options.loss_chunk == 0);
        model.backward({}, saved, context);
        EXPECT_EQ(now(Memory::gradient) - before, parameters.local_numel() * 4);
        if (m == 0 && free_between) {
            fresh.free(parameters);
            for (const auto& p : parameters) p->has_grad = false;
        }
    }
    const Result result = result_of(parameters, loss);
    fresh.free(parameters);
    EXPECT_EQ(now(Memory::gradient), before);
    return result;
}

TEST(FreshGradients, AreTheSameSums) {
    for (bool tied : {false, true})
        for (int64_t chunk : {0, 7}) {
            const LlamaConfig config = four_layers(tied);
            const ModelOptions options{.loss_chunk = chunk};
            const std::unique_ptr<Llama> plain = make(config, options);
            const Result expected = run(*plain, two_batches());
            EXPECT_EQ(with_fresh_gradients(config, options, false), expected);
            EXPECT_NE(with_fresh_gradients(config, options, true), expected);
        }
}

}  // namespace
}  // namespace ultrascale::test
