// A small model and a training step, for the tests of Llama.
#pragma once

#include <gtest/gtest.h>

#include <map>

#include "model/llama.h"
#include "tests/test_util.h"
#include "train/data.h"

namespace ultrascale::test {

inline LlamaConfig small(bool tied = false) {
    return {.layers = 2,
            .hidden = 24,
            .heads = 4,
            .kv_heads = 2,
            .head_dim = 8,
            .ffn = 40,
            .vocab = 32,
            .tied = tied};
}

inline std::unique_ptr<Llama> make(const LlamaConfig& config, const ModelOptions& options,
                                   const ModuleFactories& factories, Stage stage) {
    auto model = std::make_unique<Llama>(config, options, factories, stage);
    model->parameters().allocate_values(options.dtype);
    model->parameters().allocate_grads(options.dtype);
    model->parameters().initialize(1);
    return model;
}
inline std::unique_ptr<Llama> make(const LlamaConfig& config, const ModelOptions& options = {}) {
    return make(config, options, default_factories(config, options), Stage::whole(config));
}

inline HostBatch random_batch(int64_t sequences, int64_t length, uint64_t seed) {
    HostBatch b{.sequences = sequences, .length = length, .counted_targets = sequences * length};
    b.tokens = random_integers({b.counted_targets}, 0, 31, seed).to_host<int32_t>();
    b.targets = random_integers({b.counted_targets}, 0, 31, seed + 1).to_host<int32_t>();
    for (int64_t i = 0; i < b.counted_targets; ++i) b.positions.push_back(int32_t(i % length));
    return b;
}

struct Result {
    double loss = 0;
    std::map<std::string, Doubles> gradients;
    bool operator==(const Result&) const = default;
    Doubles all() const {
        Doubles values;
        for (const auto& [name, part] : gradients)
            values.insert(values.end(), part.begin(), part.end());
        return values;
    }
};

// Returns the context of micro-batch m in a step with these batches.
inline Context context_of(const std::vector<HostBatch>& batches, size_t m, const Tensor& loss,
                          Hooks* hooks) {
    int64_t counted = 0;
    for (const HostBatch& b : batches) counted += b.counted_targets;
    return {.batch = to_device(batches[m]),
            .token_weight = 1 / float(counted),
            .loss = loss,
            .micro_batch = int(m),
            .hooks = hooks};
}

inline void expect_empty(const Saved& saved) {
    saved.for_each([](const std::string& path, const Tensor&) {
        ADD_FAILURE() << path << " is left after backward";
    });
}

inline Result result_of(const ParameterList& parameters, const Tensor& loss) {
    Result result{.loss = to_double(loss)[0]};
    for (const auto& p : parameters) result.gradients[p->name] = to_double(p->grad);
    return result;
}

// Runs forward and backward of all batches as micro-batches of one step, through stages whose
// parameters are in one list.
inline Result run(ParameterList& parameters, const std::vector<Llama*>& stages,
                  const std::vector<HostBatch>& batches, bool split = false,
                  Hooks* hooks = nullptr) {
    ops::fill(parameters.flat_grads(), NAN);  // earlier contents must not matter
    parameters.begin_gradients(int64_t(batches.size()));
    const WeightGradient when = split ? WeightGradient::later : WeightGradient::now;
    const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
    for (size_t m = 0; m < batches.size(); ++m) {
        Context context = context_of(batches, m, loss, hooks);
        std::vector<Saved> saved(stages.size());
        Tensor x, dy;
        for (size_t s = 0; s < stages.size(); ++s) x = stages[s]->forward(x, saved[s], context);
        for (size_t s = stages.size(); s-- > 0;)
            dy = stages[s]->backward(dy, saved[s], context, when);
        for (size_t s = stages.size(); split && s-- > 0;)
            stages[s]->backward_weight(saved[s], context);
        for (const Saved& kept : saved) expect_empty(kept);
    }
    return result_of(parameters, loss);
}
inline Result run(Llama& model, const std::vector<HostBatch>& batches, bool split = false,
                  Hooks* hooks = nullptr) {
    return run(model.parameters(), {&model}, batches, split, hooks);
}

inline std::vector<ModelOptions> all_options(std::vector<DType> dtypes = {DType::fp32}) {
    std::vector<ModelOptions> all;
    for (DType dtype : dtypes)
        for (AttentionKind attention : {AttentionKind::flash, AttentionKind::naive})
            for (int64_t chunk : {0, 7})
                for (const Recompute& recompute : std::initializer_list<Recompute>{
                         Recompute::none, Recompute::selective, Recompute::full, {1, 1}})
                    all.push_back({dtype, recompute, attention, chunk});
    return all;
}

// Hooks that record the events in order, and each gradient at the moment when it was reported
// complete.
class Recorder : public Hooks {
public:
    std::vector<std::string> events;
    std::map<std::string, Doubles> complete;
    void add(char sign, const Unit& unit, Pass pass, int m) {
        events.push_back(fmt::format("{} {} {} {}", m, sign, pass_names[int(pass)], unit.name));
    }
    void before(const Unit& unit, Pass pass, const Context& c) override {
        add('>', unit, pass, c.micro_batch);
    }
    void after(const Unit& unit, Pass pass, const Context& c) override {
        add('<', unit, pass, c.micro_batch);
    }
    void gradient_complete(Parameter& parameter, const Context& c) override {
        events.push_back(fmt::format("{} {}", c.micro_batch, parameter.name));
        EXPECT_TRUE(complete.try_emplace(events.back(), to_double(parameter.grad)).second)
            << parameter.name << " twice";
    }
};

}  // namespace ultrascale::test
