#include "verify.h"

#include <cmath>

#include "comm.h"
#include "setup.h"

namespace ultrascale {

VerifyBounds verify_bounds(DType dtype) {
    if (dtype == DType::fp32) return {1e-5, 1e-5, 1e-4};
    return {3e-2, 3e-2, 1e-2};  // bf16 keeps 8 bits: another order of the same sums differs in the third digit
}

Verifier::Verifier(const Options& options, const LlamaConfig& config, const DataLoader& loader, std::vector<int64_t> batch_sizes)
    : bounds_(verify_bounds(options.dtype)) {
    batch_sizes.resize(std::min<size_t>(batch_sizes.size(), verified_steps));
    Llama model(config, {.dtype = options.dtype, .attention = AttentionKind::naive});
    ParameterList& parameters = model.parameters();
    parameters.allocate_values(options.dtype);
    parameters.allocate_grads(options.grad_dtype());
    load_or_initialize(options, parameters);
    AdamW optimizer(parameters, options.optimizer);
    const TrainingState state = resume_or_start(options, optimizer);
    int64_t next_sample = state.next_sample;
    for (size_t step = 0; step < batch_sizes.size(); ++step) {
        ops::fill(parameters.flat_grads(), 0);
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

double Verifier::relative_error(const ParameterList& parameters, Tensor Parameter::*member, const Values& reference) const {
    // Every rank adds up its slices; elements held by several ranks weigh more in both sums alike.
    std::vector<double> sums = {0, 0};
    for (const auto& p : parameters) {
        const std::vector<float>& want = reference.at(p->name);
        const std::vector<float> got = ((*p).*member).to_host_float();
        const Range rows = p->slice.front(), cols = p->slice.size() > 1 ? p->slice[1] : Range{0, 1};
        const int64_t whole_cols = p->slice.size() > 1 ? p->shape[1] : 1;
        for (int64_t i = 0; i < rows.size(); ++i)
            for (int64_t j = 0; j < cols.size(); ++j) {
                const double w = want[size_t((rows.begin + i) * whole_cols + cols.begin + j)];
                const double d = got[size_t(i * cols.size() + j)] - w;
                sums[0] += d * d;
                sums[1] += w * w;
            }
    }
    if (Communicator::world().size() > 1) {
        const std::vector<float> mine(sums.begin(), sums.end());
        Tensor all = Tensor::from_host<float>(mine, {2}, Memory::workspace);
        Communicator::world().all_reduce(all);
        const std::vector<float> summed = all.to_host<float>();
        sums.assign(summed.begin(), summed.end());
    }
    return std::sqrt(sums[0] / sums[1]);
}

void Verifier::gradient(int64_t step, const ParameterList& parameters) {
    if (step == 0) gradient_error_ = relative_error(parameters, &Parameter::grad, reference_gradient_);
}

void Verifier::after_step(int64_t step, double loss, const ParameterList& parameters) {
    const int64_t compared = int64_t(reference_losses_.size());
    if (step >= compared) return;
    const double difference = std::abs(loss - reference_losses_[size_t(step)]);
    loss_error_ = std::isnan(difference) ? difference : std::max(loss_error_, difference);
    if (step == compared - 1) weights_error_ = relative_error(parameters, &Parameter::value, reference_weights_);
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
