// The tensors of a recipe (3_recipes.h): every parameter's weights, master weights, gradients and
// moments, each in its format, and the scales of those that have one. Products in 8 bits save time;
// storage in 8 bits saves memory: a parameter takes 9 bytes with `fp8-lm`, but 16 with bf16.
//
//     linears   [q k v o gate up down, layer 0 | layer 1 | ...]     one flat tensor for each column
//     the rest  [embedding | norms | head]                          of the recipe's table
//
// Neighbours in the model are neighbours in memory, as products of stacked weights need it.
//
// A tensor in fp8, and master weights and moments in fp16, stand for scale * tensor, with one scale
// a parameter. (The second moment is as small as the gradient's square, 1e-12 and less: without a
// scale fp16 would hold zeros.) Weights in fp8 have the scales of their products instead
// (6_fp8_linear.h). If the loss is scaled, gradients in 16 bits get a scale, too: dividing them in
// place would lose the bits that the loss scale has saved.
#pragma once

#include <algorithm>
#include <set>
#include <span>

#include "core/ops_fp8.h"
#include "kernels/ops_ranges.h"
#include "model/parameter.h"
#include "precision_options.h"

namespace ultrascale::mixed_precision {

// Whether a state in this dtype has a scale for each parameter.
inline bool state_is_scaled(DType dtype) { return is_fp8(dtype) || dtype == DType::fp16; }
// Whether gradients have a scale for each parameter.
inline bool gradients_are_scaled(const Recipe& r) {
    return is_fp8(r.read()) || (r.loss_scale && r.read() != DType::fp32);
}

// Returns x in fp32, times its scale (1), if it has one: x itself, or a copy.
inline Tensor to_fp32(const Tensor& x, const Tensor& scale) {
    if (!scale && x.dtype() == DType::fp32) return x;
    Tensor wide = Tensor::empty(x.shape(), DType::fp32, Memory::workspace);
    const int64_t n = x.numel();
    if (is_fp8(x.dtype()))
        ops::dequantise(wide, {x, scale}, ops::ScaleGroup::tensor);
    else if (scale)  // x is taken as a single column
        ops::scale_columns(wide.view({n, 1}), x.view({n, 1}), scale);
    else
        ops::copy(wide, x);
    return wide;
}

class Storage {
public:
    struct StoredParameter {
        Parameter* parameter;
        const Recipe* recipe;
        Tensor value, master, m, v;  // master: value itself if the recipe has none
        Tensor accumulated, gradient;
        Tensor master_scale, m_scale, v_scale, gradient_scale;  // (1) fp32, or empty
        // Whether the value is rounded from the master only after the update: its scales depend on
        // the whole matrix, or the master itself is rounded first.
        bool value_later() const { return is_fp8(value.dtype()) || master_scale; }
        Tensor sum() const { return accumulated ? accumulated : gradient; }
        Tensor read() const { return gradient ? gradient : accumulated; }
        // Whether this rank rounds its sums to gradients. (9_fp8_all_reduce.h rounds gradients in
        // fp8, because their scale depends on all ranks.)
        bool rounds() const { return accumulated && gradient && !is_fp8(gradient.dtype()); }
    };

    // `linears`: the parameters that are multiplied in fp8.
    Storage(const ParameterList& parameters, const Recipe& recipe,
            const std::set<const Parameter*>& linears)
        : linears_recipe_(recipe), rest_recipe_(recipe.rest_recipe()) {
        for (const bool linear : {true, false}) {
            std::vector<StoredParameter> group;
            for (const auto& p : parameters)
                if (linears.contains(p.get()) == linear)
                    group.push_back({p.get(), linear ? &linears_recipe_ : &rest_recipe_});
            if (!group.empty()) allocate(group, linear ? linears_recipe_ : rest_recipe_);
            (linear ? linears_ : rest_) = group.size();
            held_.insert(held_.end(), group.begin(), group.end());
        }
        for (StoredParameter& h : held_) h.parameter->value = h.value;
        begin_step();
    }
    Storage(const Storage&) = delete;

    std::span<StoredParameter> all() { return held_; }
    std::span<const StoredParameter> all() const { return held_; }
    std::span<StoredParameter> linears() { return std::span(held_).first(linears_); }
    std::span<StoredParameter> rest() { return std::span(held_).subspan(linears_, rest_); }

    // Called after ParameterList::begin_gradients(). Backward adds to the accumulated gradients, if
    // there are any. A sum of one term needs none: backward writes it rounded.
    void begin_step() {
        for (StoredParameter& h : held_) {
            const bool one_term = h.parameter->contributions == 1 && h.parameter->added_at_once;
            h.parameter->grad = h.rounds() && one_term ? h.gradient : h.sum();
        }
    }
    // Called after the micro-batches: rounds accumulated gradients to the format that ranks sum.
    void round_gradients() {
        for (StoredParameter& h : held_) {
            const bool summed = h.parameter->grad.data() == h.sum().data();
            if (h.rounds() && summed) ops::copy(h.gradient, h.accumulated);
            h.parameter->grad = h.read();
        }
    }

    // Undoes the multiplication of the loss by `scale`. Gradients in fp32 are divided in place; for
    // the others the scale is divided. In 16 bits a gradient has no other scale, so the last step's
    // is overwritten.
    void unscale(double scale) {
        for (StoredParameter& h : held_) {
            if (!h.gradient_scale) {
                if (scale != 1) ops::scale(h.read(), float(1 / scale));
            } else if (is_fp8(h.read().dtype())) {
                ops::scale(h.gradient_scale, float(1 / scale));
            } else {
                ops::fill(h.gradient_scale, float(1 / scale));
            }
        }
    }

    // The gradients, one list for each dtype, as operations need it.
    std::vector<std::vector<Tensor>> gradients() const {
        std::vector<std::vector<Tensor>> lists(2);
        for (size_t i = 0; i < held_.size(); ++i)
            lists[i < linears_ ? 0 : 1].push_back(held_[i].read());
        std::erase_if(lists, [](const auto& list) { return list.empty(); });
        return lists;
    }
    // Returns the sum of squares of the whole gradient: (1) fp64 on the device.
    Tensor squared_norm() const {
        Tensor sum = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        std::vector<Tensor> plain;  // without a scale; one call for each dtype
        for (const StoredParameter& h : held_) {
            if (!h.gradient_scale)
                plain.push_back(h.read());
            else
                ops::accumulate_sum_squares(sum, {unscaled(h)});
        }
        std::stable_sort(plain.begin(), plain.end(), [](const Tensor& a, const Tensor& b) {
            return int(a.dtype()) < int(b.dtype());
        });
        for (auto begin = plain.begin(); begin != plain.end();) {
            const auto end = std::find_if(
                begin, plain.end(), [&](const Tensor& t) { return t.dtype() != begin->dtype(); });
            ops::accumulate_sum_squares(sum, {begin, end});
            begin = end;
        }
        return sum;
    }
    // Returns a gradient in fp32, with its scale applied.
    static Tensor unscaled(const StoredParameter& h) { return to_fp32(h.read(), h.gradient_scale); }
    std::vector<TensorPart> unscaled_gradients() const {
        std::vector<TensorPart> parts;
        for (const StoredParameter& h : held_) parts.emplace_back(*h.parameter, unscaled(h));
        return parts;
    }
    // Returns the weights in fp32, as exactly as they are known.
    static Tensor exact(const StoredParameter& h) { return to_fp32(h.master, h.master_scale); }
    // Sets the master weights to fp32 values, with a scale like the update's if they have one.
    static void set_exact(StoredParameter& h, const Tensor& fp32) {
        if (!h.master_scale) return ops::copy(h.master, fp32);
        const std::vector<float> values = fp32.to_host<float>();
        float largest = 0;
        for (float x : values) largest = std::max(largest, std::abs(x));
        const float scale =
            largest > 0 ? std::exp2(std::ceil(std::log2(largest / formats::Fp16::largest()))) : 1;
        std::vector<fp16> scaled;
        for (float x : values) scaled.push_back(fp16(x / scale));
        ops::fill(h.master_scale, scale);
        h.master.copy_from_host(scaled.data());
    }
    std::vector<TensorPart> exact_weights() const {
        std::vector<TensorPart> parts;
        for (const StoredParameter& h : held_) parts.emplace_back(*h.parameter, exact(h));
        return parts;
    }

private:
    void allocate(std::vector<StoredParameter>& group, const Recipe& r) {
        int64_t elements = 0;
        for (const StoredParameter& h : group) elements += h.parameter->local_numel();
        const auto flat = [&](Tensor StoredParameter::*member, DType dtype, Memory category) {
            const Tensor all = Tensor::zeros({elements}, dtype, category);
            int64_t begin = 0;
            for (StoredParameter& h : group) {
                const int64_t end = begin + h.parameter->local_numel();
                h.*member = all.slice(begin, end).view(h.parameter->local_shape());
                begin = end;
            }
        };
        const auto scales = [&](Tensor StoredParameter::*member, Memory category) {
            Tensor all = Tensor::empty({int64_t(group.size())}, DType::fp32, category);
            ops::fill(all, 1);
            for (size_t i = 0; i < group.size(); ++i)
                group[i].*member = all.slice(int64_t(i), int64_t(i) + 1);
        };
        const auto state = [&](Tensor StoredParameter::*member, Tensor StoredParameter::*scale,
                               DType dtype) {
            flat(member, dtype, Memory::optimizer);
            if (state_is_scaled(dtype)) scales(scale, Memory::optimizer);
        };
        flat(&StoredParameter::value, r.weights, Memory::parameter);
        if (r.master) state(&StoredParameter::master, &StoredParameter::master_scale, *r.master);
        state(&StoredParameter::m, &StoredParameter::m_scale, r.m);
        state(&StoredParameter::v, &StoredParameter::v_scale, r.v);
        if (r.accumulated) flat(&StoredParameter::accumulated, *r.accumulated, Memory::gradient);
        if (r.gradients) flat(&StoredParameter::gradient, *r.gradients, Memory::gradient);
        if (gradients_are_scaled(r)) scales(&StoredParameter::gradient_scale, Memory::gradient);
        for (StoredParameter& h : group)
            if (!h.master) h.master = h.value;
    }

    Recipe linears_recipe_, rest_recipe_;
    std::vector<StoredParameter> held_;  // the linears' first
    size_t linears_ = 0, rest_ = 0;
};

}  // namespace ultrascale::mixed_precision
