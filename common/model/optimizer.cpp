#include "optimizer.h"

#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/ops.h"
#include "core/stream.h"

namespace ultrascale {

double learning_rate(const OptimizerOptions& options, int64_t step) {
    if (step < options.warmup) return options.lr * double(step + 1) / double(options.warmup);
    if (!options.cosine) return options.lr;
    const double length = double(std::max<int64_t>(options.total_steps - options.warmup, 1));
    const double progress = std::min(double(step - options.warmup) / length, 1.0);
    return options.lr * (0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi * progress)));
}

AdamW::AdamW(const ParameterList& parameters, const OptimizerOptions& options) : options_(options) {
    for (const auto& p : parameters) items_.push_back({p.get(), 0, p->value, p->grad});
}

void AdamW::allocate_states() {
    const Memory category = on_host() ? Memory::host : Memory::optimizer;
    int64_t total = 0;
    for (const Item& item : items_) total += item.value.numel();
    const auto flat = [&](std::vector<Tensor>& parts) {
        Tensor all = Tensor::zeros({total}, DType::fp32, category);
        int64_t offset = 0;
        for (const Item& item : items_) {
            parts.push_back(
                all.slice(offset, offset + item.value.numel()).view(item.value.shape()));
            offset += item.value.numel();
        }
    };
    flat(m_);
    flat(v_);
    // An fp32 value is its own master; the others get copies in one flat tensor.
    int64_t copied = 0, offset = 0;
    for (const Item& item : items_)
        copied += item.value.dtype() == DType::fp32 ? 0 : item.value.numel();
    Tensor copies = copied > 0 ? Tensor::empty({copied}, DType::fp32, category) : Tensor();
    for (const Item& item : items_) {
        if (item.value.dtype() == DType::fp32) {
            master_.push_back(item.value);
            continue;
        }
        master_.push_back(
            copies.slice(offset, offset + item.value.numel()).view(item.value.shape()));
        ops::copy(master_.back(), item.value);
        offset += item.value.numel();
    }
    if (on_host()) compute_stream().synchronize();  // the host is about to read the copies
}

void AdamW::step(double lr, const Tensor& squared_norm) {
    if (m_.size() < items_.size()) allocate_states();
    ++steps_;
    std::vector<ops::AdamWItem> updates;
    for (size_t i = 0; i < items_.size(); ++i) {
        const Item& item = items_[i];
        updates.push_back({item.value, master_[i], m_[i], v_[i],
                           item.grad ? item.grad : item.parameter->grad,
                           item.parameter->decays ? float(options_.weight_decay) : 0});
    }
    const ops::AdamWSettings settings = {.lr = float(lr),
                                         .beta1 = float(options_.beta1),
                                         .beta2 = float(options_.beta2),
                                         .eps = float(options_.eps),
                                         .step = steps_,
                                         .max_norm = float(options_.clip)};
    on_host() ? ops::adamw_on_host(updates, squared_norm, settings)
              : ops::adamw(updates, squared_norm, settings);
}

std::vector<TensorPart> AdamW::states() {
    if (m_.size() < items_.size()) allocate_states();
    std::vector<TensorPart> all;
    for (size_t i = 0; i < items_.size(); ++i) {
        const auto& [parameter, begin, value, grad] = items_[i];
        all.emplace_back(*parameter, m_[i], begin, "exp_avg.");
        all.emplace_back(*parameter, v_[i], begin, "exp_avg_sq.");
        if (value.dtype() != DType::fp32)
            all.emplace_back(*parameter, master_[i], begin, "master.");
    }
    return all;
}

}  // namespace ultrascale
