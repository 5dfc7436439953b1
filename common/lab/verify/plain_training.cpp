#include "plain_training.h"

#include <bit>

#include "core/random.h"
#include "core/threads.h"
#include "core/trace.h"
#include "train/gradients.h"
#include "train/setup.h"

namespace ultrascale {

static void set_values(Tensor to, const std::vector<float>& values) {
    if (to.dtype() == DType::fp32) return to.copy_from_host(values.data());
    const auto set = [&](const auto& narrow) { to.copy_from_host(narrow.data()); };
    if (to.dtype() == DType::bf16) return set(std::vector<bf16>(values.begin(), values.end()));
    check(to.dtype() == DType::fp16, "verify: values of another dtype than fp32, bf16 and fp16");
    set(std::vector<fp16>(values.begin(), values.end()));
}

void PlainTraining::start(ParameterList& parameters, AdamW& optimizer) {
    load_or_initialize(options_, parameters);
    state_ = resume_or_start(options_, {&optimizer, 1}, parameters);
    for (const auto& p : parameters) start_[p->name] = p->value.to_host_float();
    for (const TensorPart& buffer : parameters.buffers())
        start_[buffer.name] = buffer.tensor.to_host_float();
    if (state_.step == 0) return;
    for (const TensorPart& part : optimizer.states())
        start_[part.name] = part.tensor.to_host_float();
}

std::vector<float> PlainTraining::start_of(const std::string& name, uint64_t displacement) const {
    return displaced(start_.at(name), name, displacement, rounding_);
}

std::vector<float> displaced(std::vector<float> values, const std::string& name,
                             uint64_t displacement, DType dtype) {
    if (displacement == 0) return values;
    const bool half = dtype != DType::fp32;
    // The unit in the bits of a float, whose fraction has 23 bits; bf16's has 7, fp16's 10.
    const uint32_t unit = dtype == DType::bf16 ? 1 << 16 : dtype == DType::fp16 ? 1 << 13 : 1;
    const Random random(displacement, name);
    for (size_t i = 0; i < values.size(); ++i) {
        const uint32_t word = random.bits(i), bits = std::bit_cast<uint32_t>(values[i]);
        if (values[i] == 0 || (half && word / 2 % 64 != 0)) continue;
        values[i] = std::bit_cast<float>(word % 2 == 0 ? bits + unit : bits - unit);
    }
    return values;
}

// Displaces the fp32 master of a bf16 weight as well, because training continues from it.
void PlainTraining::start_displaced(ParameterList& parameters, AdamW& optimizer,
                                    uint64_t displacement) const {
    for (const auto& p : parameters) set_values(p->value, start_of(p->name, displacement));
    for (const TensorPart& buffer : parameters.buffers())
        set_values(buffer.tensor, start_.at(buffer.name));
    if (state_.step == 0) return;  // the first step creates the states and copies the masters
    for (const TensorPart& part : optimizer.states()) {
        std::vector<float> state = start_.at(part.name);
        if (constexpr std::string_view master = "master."; part.name.starts_with(master)) {
            const std::string name = part.name.substr(master.size());
            const std::vector<float>&before = start_.at(name), after = start_of(name, displacement);
            for (size_t i = 0; i < state.size(); ++i) state[i] += after[i] - before[i];
        }
        set_values(part.tensor, state);
    }
    optimizer.set_steps_done(state_.step);
}

PlainTraining::Result PlainTraining::train(uint64_t displacement, size_t steps) {
    const Aside aside;
    const ModelOptions plain{
        .dtype = options_.dtype,
        .attention = displacement == 0 ? AttentionKind::naive : AttentionKind::flash,
        .dropout = options_.dropout,
        .seed = options_.seed};
    ModuleFactories factories = default_factories(config_, plain);
    if (change_) change_(factories);
    Llama model(config_, plain, factories, Stage::whole(config_));
    ParameterList& parameters = model.parameters();
    parameters.allocate_values(options_.dtype);
    parameters.allocate_grads(options_.grad_dtype());
    const std::unique_ptr<AdamW> optimizer =
        make_optimizer(items_of(parameters), options_.optimizer);
    start_.empty() ? start(parameters, *optimizer)
                   : start_displaced(parameters, *optimizer, displacement);
    Result result;
    int64_t next_sample = state_.next_sample;
    for (size_t step = 0; step < steps; ++step) {
        const int64_t sequences = batch_sizes_[step],
                      together = micro_batch_ > 0 ? micro_batch_ : sequences,
                      counted = loader_.counted_targets(next_sample, sequences);
        parameters.begin_gradients(sequences / together);
        const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        for (int64_t m = 0; m < sequences / together; ++m) {
            const Batch batch = to_device(loader_.batch(next_sample + m * together, together));
            Context context{.batch = batch,
                            .token_weight = 1 / float(counted),
                            .loss = loss,
                            .micro_batch = int(m)};
            Saved saved;
            model.forward({}, saved, context);
            model.backward({}, saved, context);
        }
        next_sample += sequences;
        if (step == 0)
            for (const auto& p : parameters) result.gradient[p->name] = p->grad.to_host_float();
        optimizer->step(learning_rate_of(options_, state_.step, state_.step + int64_t(step)),
                        squared_gradient_norm(parameters));
        result.losses.push_back(loss.to_host<double>()[0]);
    }
    for (const auto& p : parameters) result.weights[p->name] = p->value.to_host_float();
    return result;
}

}  // namespace ultrascale
