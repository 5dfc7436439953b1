// What a rank holds and sends, by formula: computed from the configuration and the description of
// the rank's parameters, without running anything.
#pragma once

#include <numeric>

#include "../3_attention_heads.h"
#include "../3_latent_heads.h"
#include "../3_vocabulary_embedding.h"
#include "../tensor_options.h"
#include "halves_memory.h"
#include "lab/predict/budget.h"
#include "lab/predict/estimate.h"
#include "lab/report/report.h"

namespace ultrascale::tensor_parallel {

// The sizes that rank `rank` of tp computes with, of one half of a micro-batch if it runs in
// halves. In the playbook's terms, a layer keeps s b h / tp
// of each tensor inside the region of the linears; of each one outside it (norms, residuals) it
// keeps s b h, or s b h / tp with sequence parallelism.
inline LocalSizes local_sizes(const StepShape& shape, const TensorOptions& o, int64_t rank) {
    const HeadSplit heads = split_heads(shape.config, o.tp, rank);
    LocalSizes sizes = local_sizes(shape);
    sizes.heads = heads.heads, sizes.kv_heads = heads.kv_heads;
    sizes.features /= o.tp;
    sizes.vocabulary = vocabulary_shard(shape.config.vocab, o.tp, rank).size();
    if (o.sequence_parallel) sizes.stream_tokens /= o.tp;
    sizes.sequences /= parts_of_micro_batch(o);
    sizes.keeps_gathered = o.keep_gathered;
    sizes.gathers_beside = o.overlap != Overlap::none;
    if (o.partition_checkpoints) sizes.checkpoint_parts = o.tp;
    sizes.loss_parts = o.tp;
    return sizes;
}

inline int64_t peak_activation_bytes(const StepShape& shape, const TensorOptions& o, int64_t rank) {
    const LocalSizes sizes = local_sizes(shape, o, rank);
    return o.overlap == Overlap::halves ? peak_of_halves(sizes) : peak_activation_bytes(sizes);
}

// Prints it in the playbook's terms: what one layer of a Llama keeps, in units of s b h.
inline void print_layer_formula(const StepShape& shape, const TensorOptions& o, int64_t rank) {
    const LlamaConfig& c = shape.config;
    const HeadSplit heads = split_heads(c, o.tp, rank);
    const double h = double(c.hidden), sbh = double(shape.micro_batch * shape.seq) * h *
                                             double(dtype_bytes(shape.model.dtype));
    const double norms = o.sequence_parallel ? 2.0 / o.tp : 2,
                 inputs = o.sequence_parallel && !o.keep_gathered ? 2.0 / o.tp : 2;
    const double inside = 2 * double(heads.q_rows.size() + heads.kv_rows.size() + c.ffn / o.tp) / h;
    print(fmt::format(
        "  a layer's activations: s b h of {} x (norms' inputs {:.4g} + linears' inputs {:.4g} +",
        format_bytes(sbh), norms, inputs));
    print(fmt::format("    q k v o, gate, up {:.4g}) = {}; {}", inside,
                      format_bytes(sbh * (norms + inputs + inside)),
                      shape.model.recompute == Recompute::full
                          ? "all layers but one keep only their input"
                          : "and 4 bytes a row for each norm and head"));
}

// The regions of linears of a model, or of the part that a rank has of it: two a layer, of which
// the feed-forward's is none if experts take its place; the embedding; the head.
struct Regions {
    int64_t layers;  // attention's
    int64_t feed_forwards;
    bool embedding = true, head = true;
};

// Adds what the ranks of a tensor-parallel group send in forward and backward of A micro-batches,
// or of their halves.
inline void add_regions(Prediction& prediction, StepShape shape, const TensorOptions& o,
                        const Regions& regions, int64_t A) {
    if (o.tp == 1) return;
    const int64_t parts = parts_of_micro_batch(o);
    shape.micro_batch /= parts, A *= parts;
    const LlamaConfig& c = shape.config;
    const Group tp("tp", o.tp);
    const bool sp = o.sequence_parallel;
    const int64_t both = regions.layers + regions.feed_forwards, embedding = regions.embedding,
                  head = regions.head, tokens = shape.micro_batch * shape.seq,
                  e = dtype_bytes(shape.model.dtype);
    const int64_t C = row_chunks(o, tokens);
    const Recompute& recompute = shape.model.recompute;
    const int64_t attentions = recompute.forwards(regions.layers),
                  feed_forwards = recompute.forwards(regions.feed_forwards);
    const int64_t chunk = shape.model.loss_chunk,  // of the loss, in tokens; 0: one piece
        chunks = chunk == 0 ? 0 : (tokens + chunk - 1) / chunk;
    PredictedCommunication& p = prediction.communication;
    // `tensors` tensors of (N, width), each in `calls` calls
    const auto send_width = [&](int64_t width, Collective kind, int64_t tensors, int64_t calls) {
        p.add(tp, kind, A * tensors * calls, A * tensors * tokens * width * e);
    };
    const auto send = [&](Collective kind, int64_t tensors, int64_t calls) {
        send_width(c.hidden, kind, tensors, calls);
    };
    const std::vector<int64_t> into_heads = widths_into_heads(c);
    for (size_t i = 0; i < into_heads.size(); ++i) {  // of attention's column linears
        const auto attention = [&](Collective kind, int64_t tensors, int64_t calls) {
            send_width(into_heads[i], kind, tensors, calls);
        };
        if (!sp) {
            attention(Collective::all_reduce, regions.layers, 1);  // in backward
            continue;
        }
        // Heads that are made of latents again enter again.
        const int64_t again = c.latent ? recompute.count(Recompute::selective, regions.layers) : 0;
        const bool key = c.latent && i + 1 == into_heads.size();
        attention(Collective::all_gather, attentions + again, C);
        attention(Collective::reduce_scatter, regions.layers, C);
        if (!o.keep_gathered && !key) attention(Collective::all_gather, regions.layers, C);
    }
    if (!sp) {
        send(Collective::all_reduce, attentions + feed_forwards, C);  // o and down, in forward
        send(Collective::all_reduce, regions.feed_forwards, 1);       // gate, up, in backward
        send(Collective::all_reduce, embedding + head, 1);  // embedding; the head's backward
        if (o.partition_checkpoints)
            send(Collective::all_gather, recompute.count(Recompute::full, regions.layers), 1);
    } else {
        // All-gathers: before column linears, and in the backward of row linears. Reduce-scatters:
        // the reverse.
        send(Collective::all_gather, feed_forwards + both, C);
        send(Collective::reduce_scatter, attentions + feed_forwards + regions.feed_forwards, C);
        send(Collective::all_gather, embedding + head, C);      // head; the embedding's backward
        send(Collective::reduce_scatter, embedding + head, C);  // embedding; the head's backward
        // Inputs are gathered again for weight gradients; a chunked loss computes the head's in
        // forward.
        if (!o.keep_gathered)
            send(Collective::all_gather, regions.feed_forwards + (chunks == 0 ? head : 0), C);
    }
    if (regions.head)
        p.add(tp, Collective::all_gather, A * std::max<int64_t>(chunks, 1),
              A * 3 * 4 * tokens * o.tp);  // of the loss
}

// Adds what they send in a step with A micro-batches. `parameters`: what this rank holds.
inline void add_to(Prediction& prediction, const StepShape& shape, const TensorOptions& o,
                   const ParameterList& parameters, int64_t A, int64_t rank) {
    if (o.tp == 1) return;
    const LlamaConfig& c = shape.config;
    const Group tp("tp", o.tp);
    add_regions(prediction, shape, o, {.layers = c.layers, .feed_forwards = c.layers}, A);
    PredictedCommunication& p = prediction.communication;
    // The gradients of parameters that several ranks hold: norms, latents and positions, which
    // saw other tokens or heads on each rank, and key-value heads, which saw other queries.
    const int64_t g = dtype_bytes(shape.grad_dtype);
    const Group kv("kv", split_heads(c, o.tp, rank).copies);
    for (const auto& parameter : parameters) {
        const bool by_heads = parameter->name.find("_norm.") != parameter->name.npos,
                   by_tokens = parameter->of_norm() ||
                               parameter->name.find("_a_proj") != parameter->name.npos ||
                               parameter->name.find("positions") != parameter->name.npos;
        if (by_heads || (o.sequence_parallel && by_tokens))
            p.add(tp, Collective::all_reduce, 1, parameter->local_numel() * g);
        if (kv.ranks > 1 && is_key_or_value(parameter->name))
            p.add(kv, Collective::all_reduce, 1, parameter->local_numel() * g);
    }
    p.add_scalar_sum(tp);  // the gradient's norm
}

// The prediction for rank `rank` of tp, which holds these parameters, in one of `replicas` groups
// ("dp").
inline Prediction predict(const StepShape& shape, const TensorOptions& options,
                          const ParameterList& parameters, int64_t A, int64_t replicas,
                          int64_t rank) {
    Prediction prediction;
    add_parameters(prediction, parameters.local_numel(), shape);
    prediction.memory += {.peak_activations = peak_activation_bytes(shape, options, rank)};
    add_flops(prediction, shape, parameter_count(shape.config));
    add_to(prediction, shape, options, parameters, A, rank);
    const Group dp("dp", replicas);
    add_gradient_sums(prediction, parameters, dp, shape.grad_dtype);
    prediction.communication.add_scalar_sum(dp);  // the loss
    return prediction;
}

// The largest micro-batch that fits into every rank's `limit` bytes and that
// --partition-checkpoints, if given, can split; 0 if none does. All ranks call it.
inline int64_t largest_micro_batch(StepShape shape, const TensorOptions& options,
                                   const ParameterList& parameters, int64_t rank, int64_t limit) {
    Prediction model;
    add_parameters(model, parameters.local_numel(), shape);
    int64_t fits = 0, too_large = 10'000'000;
    while (too_large - fits > 1) {
        shape.micro_batch = (fits + too_large) / 2;
        Prediction prediction = model;
        prediction.memory += {.peak_activations = peak_activation_bytes(shape, options, rank)};
        (prediction.memory.total() <= limit ? fits : too_large) = shape.micro_batch;
    }
    for (const std::string& rank_fits : Communicator::world().gather_strings(std::to_string(fits)))
        fits = std::min<int64_t>(fits, std::stoll(rank_fits));
    const int64_t multiple =
        parts_of_micro_batch(options) *
        (options.partition_checkpoints ? options.tp / std::gcd(shape.seq, options.tp) : 1);
    return fits - fits % multiple;
}

// The error message's advice. All ranks call it, each with its own parameters.
inline std::string what_needs_less(const StepShape& shape, const TensorOptions& options,
                                   const ParameterList& parameters, int64_t rank, int64_t limit) {
    const int64_t largest = largest_micro_batch(shape, options, parameters, rank, limit);
    return fmt::format("{}to need less memory, use a larger --tp{}{}",
                       largest > 0 ? fmt::format("--micro-batch {} would fit; ", largest) : "",
                       options.sequence_parallel ? "" : ", --sequence-parallel",
                       shape.model.recompute == Recompute::full ? "" : ", --recompute full");
}

// All ranks call it. Throws UserError on all of them if one rank's part does not fit into its
// `limit` bytes.
inline void check_fits(const StepShape& shape, const TensorOptions& options,
                       const ParameterList& parameters, int64_t rank, int64_t limit) {
    check_fits_everywhere(predict(shape, options, parameters, 1, 1, rank).memory, limit,
                          [&] { return what_needs_less(shape, options, parameters, rank, limit); });
}

}  // namespace ultrascale::tensor_parallel
