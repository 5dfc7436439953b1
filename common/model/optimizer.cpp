#include "optimizer.h"

#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/ops.h"
#include "core/stream.h"
#include "muon.h"

namespace ultrascale {

double learning_rate(const OptimizerOptions& options, int64_t step) {
    if (step < options.warmup) return options.lr * double(step + 1) / double(options.warmup);
    if (!options.cosine) return options.lr;
    const double length = double(std::max<int64_t>(options.total_steps - options.warmup, 1));
    const double progress = std::min(double(step - options.warmup) / length, 1.0);
    return options.lr * (0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi * progress)));
}

std::vector<AdamW::Item> items_of(const ParameterList& parameters) {
    std::vector<AdamW::Item> items;
    for (const auto& p : parameters) items.push_back({p.get(), 0, p->value, p->grad});
    return items;
}

AdamW::AdamW(const ParameterList& parameters, const OptimizerOptions& options)
    : AdamW(items_of(parameters), options) {}

std::unique_ptr<AdamW> make_optimizer(std::vector<AdamW::Item> items,
                                      const OptimizerOptions& options) {
    if (options.muon) return std::make_unique<Muon>(std::move(items), options);
    return std::make_unique<AdamW>(std::move(items), options);
}

static bool on_host(const std::vector<AdamW::Item>& items) {
    return !items.empty() && items.front().value.on_host();
}

// Views of one flat fp32 tensor, one for each item, or empty for those that do not `need` one.
template <class Needs>
static std::vector<Tensor> flat_states(const std::vector<AdamW::Item>& items, const Needs& needs) {
    int64_t total = 0, offset = 0;
    for (const AdamW::Item& item : items) total += needs(item) ? item.value.numel() : 0;
    const Tensor all = total > 0 ? Tensor::zeros({total}, DType::fp32,
                                                 on_host(items) ? Memory::host : Memory::optimizer)
                                 : Tensor();
    std::vector<Tensor> states;
    for (const AdamW::Item& item : items) {
        if (!needs(item)) {
            states.emplace_back();
            continue;
        }
        const int64_t end = offset + item.value.numel();
        states.push_back(all.slice(offset, end).view(item.value.shape()));
        offset = end;
    }
    return states;
}

std::vector<Tensor> AdamW::zeros_for(const std::vector<Item>& items) {
    return flat_states(items, [](const Item&) { return true; });
}

std::vector<Tensor> AdamW::masters_of(const std::vector<Item>& items) {
    std::vector<Tensor> masters =
        flat_states(items, [](const Item& item) { return item.value.dtype() != DType::fp32; });
    for (size_t i = 0; i < items.size(); ++i)
        if (masters[i])
            ops::copy(masters[i], items[i].value);
        else
            masters[i] = items[i].value;
    if (on_host(items)) compute_stream().synchronize();  // the host is about to read the copies
    return masters;
}

void AdamW::allocate_states() {
    m_ = zeros_for(items_), v_ = zeros_for(items_), master_ = masters_of(items_);
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
    on_host(items_) ? ops::adamw_on_host(updates, squared_norm, settings)
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
