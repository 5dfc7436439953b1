// What a rank holds and sends, by formula: the tensors of the recipe to the byte, with their scales
// (8_storage.h); the activations of any run, less the bytes saved by keeping fewer bits
// (7_kept_in_fp8.h); and the sums of gradients in the recipe's format.
#pragma once

#include "../mixed_training.h"
#include "lab/predict/estimate.h"

namespace ultrascale::mixed_precision {

// The parameters of the layers' linears, counted by stack: q, k and v have one matrix of weights.
struct LinearSizes {
    int64_t parameters = 0, elements = 0;  // the linears'
    int64_t rest = 0, rest_elements = 0;   // all others'
    int64_t weight_scales = 0;             // fp32 numbers, for weights in fp8
};
inline LinearSizes linear_sizes(const LlamaConfig& c, const Recipe& recipe) {
    const int64_t per_layer = recipe.fp8() ? 7 : 0;
    LinearSizes sizes{.parameters = per_layer * c.layers};
    const int64_t qkv = c.q_size() + 2 * c.kv_size(), h = c.hidden, F = c.ffn;
    if (recipe.fp8()) {
        const auto group = group_of_weights(recipe.products);
        for (const auto& [rows, cols] : {std::pair{qkv, h}, {h, c.q_size()}, {2 * F, h}, {h, F}}) {
            sizes.elements += c.layers * rows * cols;
            if (is_fp8(recipe.weights))
                sizes.weight_scales += c.layers * numel(ops::scales_shape(rows, cols, group));
        }
    }
    sizes.rest_elements = parameter_count(c) - sizes.elements;
    // Two norms a layer (four if, as in Qwen 3, heads have norms), the final norm, embedding, head.
    sizes.rest = (2 + (c.head_norms ? 2 : 0) + (7 - per_layer)) * c.layers + 2 + (c.tied ? 0 : 1);
    return sizes;
}

// The number of tensors that have a history of largest magnitudes: x, W and dy of each of a layer's
// four products, except for the smoothed one; and of the head's, if it is in fp8.
inline int64_t rounded_tensors(const LlamaConfig& c, const PrecisionOptions& o) {
    return 3 * ((o.smooth ? 3 : 4) * c.layers + (o.head_fp8 ? 1 : 0));
}

// The bytes that Storage holds for so many parameters and elements of one kind.
inline MemoryEstimate storage_bytes(const Recipe& r, int64_t parameters, int64_t elements) {
    const auto of = [&](std::optional<DType> dtype) {
        return dtype ? elements * dtype_bytes(*dtype) : 0;
    };
    const auto scale = [&](bool is_there) { return is_there && elements > 0 ? 4 * parameters : 0; };
    return {.parameters = of(r.weights),
            .gradients = of(r.accumulated) + of(r.gradients) + scale(gradients_are_scaled(r)),
            .optimizer = of(r.master) + of(r.m) + of(r.v) +
                         scale(r.master && state_is_scaled(*r.master)) +
                         scale(state_is_scaled(r.m)) + scale(state_is_scaled(r.v))};
}

// Adds what a step sends to sum tensors of so many elements each in e4m3 (9_fp8_all_reduce.h).
inline void add_fp8_sum(PredictedCommunication& sent, const Group& ranks,
                        const std::vector<int64_t>& elements) {
    if (ranks.ranks == 1) return;
    int64_t padded = 0;
    for (int64_t n : elements) padded += Fp8AllReduce::slice(n, ranks.ranks) * ranks.ranks;
    const int64_t calls = int64_t(elements.size());
    sent.add(ranks, Collective::all_reduce, 1, 4 * calls);
    sent.add(ranks, Collective::all_to_all, calls, padded);
    sent.add(ranks, Collective::all_gather, calls, padded);
}
// The buffers for the largest tensor: the whole of it twice in 8 bits, a slice of it twice in fp32.
inline int64_t fp8_sum_buffer_bytes(const std::vector<int64_t>& elements, int n) {
    const int64_t part = Fp8AllReduce::slice(*std::ranges::max_element(elements), n);
    return 2 * part * n + 2 * part * 4;
}

// The activations' sizes, with what fused norms (7_fused_quantisation.h) and --keep-fp8 change.
inline LocalSizes local_sizes(const StepShape& shape, const PrecisionOptions& o) {
    LocalSizes sizes = local_sizes(shape);
    if (!o.recipe.fp8() || o.recipe.only_multiplies())
        return sizes;  // x and dy are kept as in 16 bits
    const double tokens = double(shape.micro_batch * shape.seq), h = double(shape.config.hidden);
    const Products products = o.recipe.products;
    // The scales of x transposed: tiles along the tokens; one for each feature; one for all.
    const double scales = products == Products::tile  ? 4 * std::ceil(tokens / 128) / tokens
                          : products == Products::row ? 4 / tokens
                                                      : 4 / (tokens * h);
    const bool one_scale = group_of_tokens(products) == ops::ScaleGroup::tensor;
    if (!o.unfused)  // the norm keeps the rows as they were multiplied, or is computed again
        sizes.kept_input_bytes = one_scale ? 1 + scales : 0;
    else if (o.keep_fp8)
        sizes.kept_input_bytes = 1 + scales;
    sizes.keeps_dy = o.smooth;
    if (!o.keep_fp8) return sizes;
    if (keeps_e5m6(shape.config, o)) sizes.kept_output_bytes = 1.5 + 4.0 / 128;
    const double F2 = 2 * double(shape.config.ffn);
    sizes.kept_gate_up_bytes = 1 + 4 * std::ceil(F2 / 128) / F2;
    return sizes;
}

inline Prediction predict_memory(const StepShape& shape, const PrecisionOptions& o) {
    Prediction prediction;
    const LinearSizes n = linear_sizes(shape.config, o.recipe);
    prediction.memory += storage_bytes(o.recipe, n.parameters, n.elements);
    prediction.memory += storage_bytes(o.recipe.rest_recipe(), n.rest, n.rest_elements);
    int64_t buffers = 4 * n.weight_scales;
    if (o.recipe.products ==
        Products::delayed)  // histories, scales, amax of x, W, dy; the position
        buffers +=
            4 * (rounded_tensors(shape.config, o) * (o.history + AmaxHistories::stride + 1) + 1);
    if (o.loss_scale.scaled) buffers += 8;
    if (is_fp8(o.recipe.read())) buffers += 4;
    prediction.memory += {.parameters = buffers};
    add_activations(prediction, local_sizes(shape, o));
    return prediction;
}

// Predicts for one of the ranks that sum gradients. `linears`: the parameters multiplied in fp8.
inline Prediction predict(const StepShape& shape, const PrecisionOptions& o,
                          const ParameterList& parameters,
                          const std::set<const Parameter*>& linears, const Group& ranks) {
    Prediction prediction = predict_memory(shape, o);
    add_flops(prediction, shape, parameter_count(shape.config));
    if (ranks.ranks == 1) return prediction;
    std::vector<int64_t> in_fp8;
    PredictedCommunication& sent = prediction.communication;
    for (const auto& p : parameters) {
        const DType dtype =
            linears.contains(p.get()) ? o.recipe.read() : o.recipe.rest_recipe().read();
        if (is_fp8(dtype))
            in_fp8.push_back(p->local_numel());
        else
            sent.add(ranks, Collective::all_reduce, 1, p->local_numel() * dtype_bytes(dtype));
    }
    if (!in_fp8.empty()) {
        add_fp8_sum(sent, ranks, in_fp8);
        prediction.memory.peak_communication += fp8_sum_buffer_bytes(in_fp8, ranks.ranks);
    }
    if (o.recipe.products == Products::delayed)  // the largest magnitudes
        sent.add(ranks, Collective::all_reduce, 1, 4 * rounded_tensors(shape.config, o));
    if (o.loss_scale.scaled)
        sent.add(ranks, Collective::all_reduce, 1, 4);  // whether anyone overflowed
    sent.add_scalar_sum(ranks);                         // the loss
    return prediction;
}

}  // namespace ultrascale::mixed_precision
