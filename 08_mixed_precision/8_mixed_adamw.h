// AdamW on tensors of any format (kernels/ops_adamw_any.h): it reads them, computes in fp32, and
// writes them back in the recipe's format. Moments in 8 bits take 2 bytes a parameter instead of 8.
//
//     g = scale * gradient * clip        m, v = moments with g
//     master -= lr * m / (sqrt(v) + eps)                 weights = master, rounded
//
// Moments in 8 bits are rounded stochastically. Rounded to nearest, v hardly shrinks: without a
// gradient it becomes 0.95 v, but 0.95 * 1.25 = 1.1875 lies halfway between e4m3's 1.125 and 1.25,
// and ties go to the even one, 1.25. And v is never rounded to 0, because then Adam would divide by
// eps, and the update would be huge.
//
// Without master weights, the sum of weight and update is rounded to the weights' own format: to
// nearest, which loses an update below half a step, or stochastically (8_stochastic_rounding.h).
// Weights in fp8 are rounded afterwards, because their scales depend on the whole matrix
// (Fp8Linears::round_weights).
#pragma once

#include "8_storage.h"
#include "kernels/ops_adamw_any.h"
#include "model/optimizer.h"

namespace ultrascale::mixed_precision {

class MixedAdamW {
public:
    MixedAdamW(Storage& storage, const Recipe& recipe, const OptimizerOptions& options,
               uint64_t seed)
        : storage_(storage), recipe_(recipe), options_(options), seed_(seed) {}

    // Makes one update, unless `skip` ((1) int32 on the device) is given and not 0. squared_norm,
    // (1) fp64, is that of the gradients with their scales.
    void step(double lr, const Tensor& squared_norm, const Tensor& skip = {}) {
        ++steps_;
        const ops::AdamWSettings settings = {.lr = float(lr),
                                             .beta1 = float(options_.beta1),
                                             .beta2 = float(options_.beta2),
                                             .eps = float(options_.eps),
                                             .step = steps_,
                                             .max_norm = float(options_.clip)};
        for (std::span<Storage::StoredParameter> group : {storage_.linears(), storage_.rest()}) {
            std::vector<ops::AdamWAnyItem> items;
            for (const Storage::StoredParameter& h : group) items.push_back(item(h));
            if (!items.empty()) ops::adamw_any(items, squared_norm, settings, skip);
        }
    }
    // Takes the last step's number back, because the step was skipped.
    void take_back() { --steps_; }
    void set_steps_done(int64_t steps) { steps_ = steps; }

    // The states for a checkpoint: "exp_avg.<parameter>", "exp_avg_sq.<parameter>";
    // "master.<parameter>" if the weights alone do not say as much; and their scales:
    // "scale.exp_avg.<parameter>".
    std::vector<TensorPart> states() const {
        std::vector<TensorPart> all;
        const auto add = [&](const std::string& prefix, const Storage::StoredParameter& h,
                             const Tensor& tensor, const Tensor& scale) {
            all.emplace_back(*h.parameter, tensor, 0, prefix);
            if (scale) all.emplace_back("scale." + prefix + h.parameter->name, scale);
        };
        for (const Storage::StoredParameter& h : storage_.all()) {
            add("exp_avg.", h, h.m, h.m_scale);
            add("exp_avg_sq.", h, h.v, h.v_scale);
            if (h.recipe->master || h.value.dtype() != recipe_.activations)
                add("master.", h, h.master, h.master_scale);
        }
        return all;
    }

private:
    ops::AdamWAnyItem item(const Storage::StoredParameter& h) const {
        ops::AdamWAnyItem item{
            .value = h.value_later() ? h.master : h.value,
            .master = h.master,
            .m = h.m,
            .v = h.v,
            .gradient = h.read(),
            .weight_decay = h.parameter->decays ? float(options_.weight_decay) : 0,
            .value_scale = h.value_later() ? h.master_scale : Tensor(),
            .master_scale = h.master_scale,
            .m_scale = h.m_scale,
            .v_scale = h.v_scale,
            .gradient_scale = h.gradient_scale};
        if (recipe_.stochastic && !h.recipe->master)
            item.rounding = Random(seed_, fmt::format("round.{}.{}", steps_, h.parameter->name));
        if (is_fp8(h.recipe->m) || is_fp8(h.recipe->v))
            item.state_rounding =
                Random(seed_, fmt::format("moments.{}.{}", steps_, h.parameter->name));
        return item;
    }

    Storage& storage_;
    Recipe recipe_;
    OptimizerOptions options_;
    uint64_t seed_;
    int64_t steps_ = 0;
};

}  // namespace ultrascale::mixed_precision
