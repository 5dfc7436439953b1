#include "verify.h"

#include <cmath>
#include <cstring>
#include <sstream>

#include "comm.h"
#include "setup.h"

namespace ultrascale {

VerifyBounds verify_bounds(DType dtype) {
    if (dtype == DType::fp32) return {1e-5, 1e-5, 1e-4};
    return {3e-2, 3e-2, 1e-2};  // bf16 keeps 8 bits: another order of the same sums differs in the third digit
}

Verifier::Verifier(const Options& options, const LlamaConfig& config, const DataLoader& loader, std::vector<int64_t> batch_sizes,
                   const std::function<void(Parts&)>& change)
    : bounds_(verify_bounds(options.dtype)) {
    batch_sizes.resize(std::min<size_t>(batch_sizes.size(), verified_steps));
    if (Communicator::world().rank() == 0) run_reference(options, config, loader, batch_sizes, change);
    if (Communicator::world().size() > 1) tell_all_ranks();
}

void Verifier::run_reference(const Options& options, const LlamaConfig& config, const DataLoader& loader,
                             const std::vector<int64_t>& batch_sizes, const std::function<void(Parts&)>& change) {
    const ModelOptions plain{.dtype = options.dtype, .attention = AttentionKind::naive};
    Parts parts = default_parts(config, plain);
    if (change) change(parts);
    Llama model(config, plain, parts, Stage::whole(config));
    ParameterList& parameters = model.parameters();
    parameters.allocate_values(options.dtype);
    parameters.allocate_grads(options.grad_dtype());
    load_or_initialize(options, parameters);
    AdamW optimizer(parameters, options.optimizer);
    const TrainingState state = resume_or_start(options, optimizer);
    int64_t next_sample = state.next_sample;
    for (size_t step = 0; step < batch_sizes.size(); ++step) {
        parameters.clear_grads();
        const Batch batch = to_device(loader.batch(next_sample, batch_sizes[step]));
        next_sample += batch_sizes[step];
        Context context{.batch = batch, .loss_scale = 1 / float(batch.counted_targets)};
        context.loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        Saved saved;
        model.forward({}, saved, context);
        model.backward({}, saved, context);
        if (step == 0)
            for (const auto& p : parameters) reference_gradient_[p->name] = p->grad.to_host_float();
        optimizer.step(learning_rate_of(options, state.step, state.step + int64_t(step)), squared_gradient_norm(parameters));
        reference_losses_.push_back(context.loss.to_host<double>()[0]);
    }
    for (const auto& p : parameters) reference_weights_[p->name] = p->value.to_host_float();
}

void Verifier::tell_all_ranks() {
    const auto bytes = [](auto& values) {
        return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
    };
    const auto from_bytes = [](auto& values, const std::string& text) {
        values.resize(text.size() / sizeof(values[0]));
        std::memcpy(values.data(), text.data(), text.size());
    };
    const Communicator& world = Communicator::world();
    const bool root = world.rank() == 0;
    from_bytes(reference_losses_, world.broadcast_string(root ? bytes(reference_losses_) : "", 0));
    for (Values* values : {&reference_gradient_, &reference_weights_}) {
        std::string names;
        for (const auto& [name, tensor] : *values) names += name + "\n";
        std::istringstream lines(world.broadcast_string(names, 0));
        for (std::string name; std::getline(lines, name);)
            from_bytes((*values)[name], world.broadcast_string(root ? bytes((*values)[name]) : "", 0));
    }
}

double Verifier::relative_error(const std::vector<TensorPart>& parts, const Values& reference) const {
    // Every rank adds up what it holds; elements held by several ranks weigh more in both sums alike.
    double sums[2] = {0, 0};
    for (const TensorPart& part : parts) {
        const std::vector<float>&want = reference.at(part.name), got = part.tensor.to_host_float();
        part.for_each_block([&](const std::vector<Range>& block, int64_t first, int64_t count) {
            const int64_t whole_cols = part.shape.back(), cols = block.back().size();
            const int64_t row = block.size() == 2 ? block[0].begin : 0, col = block.back().begin;
            for (int64_t k = 0; k < count; ++k) {
                const double w = want[size_t((row + k / cols) * whole_cols + col + k % cols)], d = got[size_t(first + k)] - w;
                sums[0] += d * d;
                sums[1] += w * w;
            }
        });
    }
    double all[2] = {0, 0};
    for (const std::string& bytes : Communicator::world().gather_strings(std::string(reinterpret_cast<const char*>(sums), sizeof(sums)))) {
        double of_rank[2];  // as bytes: a stream would not read a NaN back
        std::memcpy(of_rank, bytes.data(), sizeof(of_rank));
        for (int i = 0; i < 2; ++i) all[i] += of_rank[i];
    }
    return std::sqrt(all[0] / all[1]);
}

void Verifier::gradient(int64_t step, const std::vector<TensorPart>& grads) {
    if (step == 0) gradient_error_ = relative_error(grads, reference_gradient_);
}

void Verifier::after_step(int64_t step, double loss, const std::vector<TensorPart>& values) {
    if (step >= int64_t(reference_losses_.size())) return;
    const double difference = std::abs(loss - reference_losses_[size_t(step)]);
    loss_error_ = std::isnan(difference) ? difference : std::max(loss_error_, difference);
    if (step + 1 == int64_t(reference_losses_.size())) weights_error_ = relative_error(values, reference_weights_);
}

bool Verifier::finish(Report& report) const {
    bool ok = true;
    print(fmt::format("\nverify: the first {} steps against one device, plain (whole batch, T x T attention, nothing recomputed)",
                      reference_losses_.size()));
    const auto line = [&](const char* name, const std::string& what, double error, double bound) {
        const bool fits = error >= 0 && error <= bound;  // false for NaN and for what was never compared
        ok = ok && fits;
        print(fmt::format("  {:<9} {:<36} {:>9.2e}  <= {:.0e}   {}", name, what, error, bound, fits ? "ok" : "MISSED"));
        report.value("verify", name, error);
    };
    line("gradient", "relative L2 error, step 1", gradient_error_, bounds_.gradient);
    line("loss", "largest difference", loss_error_, bounds_.loss);
    line("weights", fmt::format("relative L2 error, after step {}", reference_losses_.size()), weights_error_, bounds_.weights);
    report.text("verify", "result", ok ? "ok" : "missed");
    return ok;
}

}  // namespace ultrascale
