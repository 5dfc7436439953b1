// What a rank holds and sends, by formula: from the configuration alone, without running anything.
#pragma once

#include <cmath>
#include <numeric>

#include "attention_heads.h"
#include "estimate.h"
#include "options.h"
#include "report.h"
#include "vocabulary_embedding.h"

namespace ultrascale {

// Parameters that one rank of tp holds.
inline int64_t local_parameter_count(const LlamaConfig& c, int64_t tp, int64_t rank) {
    const HeadSplit heads = split_heads(c, tp, rank);
    const int64_t h = c.hidden, vocabulary = vocabulary_shard(c.vocab, tp, rank).size() * h * (c.tied ? 1 : 2);
    const int64_t attention = 2 * heads.q_rows.size() * h + 2 * heads.kv_rows.size() * h, mlp = 3 * h * c.ffn / tp;
    return vocabulary + c.layers * (2 * h + attention + mlp) + h;
}

// The activations' peak in bytes. In the playbook's terms a layer keeps s b h / tp of everything inside the linears' region, and of what
// is outside it (norms, residuals) s b h, with sequence parallelism s b h / tp.
inline int64_t predicted_activations(const StepShape& shape, const TensorOptions& o, int64_t rank) {
    const LlamaConfig& c = shape.config;
    const double n = o.tp, e = double(dtype_bytes(shape.model.dtype)), L = double(c.layers);
    const double tokens = double(shape.micro_batch) * double(shape.seq);
    const bool sp = o.sequence_parallel, again = sp && !o.keep_gathered, async = o.overlap != Overlap::none;
    const bool full = shape.model.recompute == Recompute::full, dropout = o.dropout > 0;
    const HeadSplit heads = split_heads(c, o.tp, rank);
    // bytes per token; h: a whole row, r: as the residual stream is held
    const double h = double(c.hidden) * e, r = sp ? h / n : h, rstd = sp ? 4 / n : 4;
    const double q = double(heads.q_rows.size()) * e, kv = double(heads.kv_rows.size()) * e, lse = 4 * double(heads.heads);
    const double F = double(c.ffn) / n * e, V = double(vocabulary_shard(c.vocab, o.tp, rank).size()) * e;
    const double input = again ? r : h;                   // what a column linear keeps of its input
    const double shard = sp ? r : 0, whole = sp ? h : 0;  // what reduce-scatters write; what all-gathers write

    const double attention = r + input + rstd + 2 * q + 2 * kv + lse;          // norm's x and rstd, qkv's input, q, k, v, o
    const double layer = attention + r + input + rstd + 2 * F;                 // and the second norm's, gate and up
    const double kept = full ? (o.partition_checkpoints ? h / n : r) : layer;  // of a layer, from forward to backward
    const double before = (L - 1) * kept;

    // A column linear's backward: dX's partial sum and where it is scattered to; its input again, beside them or after them.
    const double column = h + shard + (again && async ? h : 0);
    const double moments[] = {
        // head: final norm's x, output and rstd, the logits; then (max, sum, target) of all ranks and the losses; then dX
        L * kept + r + rstd + r + whole + V + 12 * n + 4,
        L * kept + r + rstd + input + V + column,
        // full recomputation runs the layer's forward to its end, while dy waits
        full ? before + layer + r + F + h + shard + (sp && o.keep_gathered ? r : 0) : 0,
        // down: dy and, gathered, whole dy (with dropout another one), da and d(gate, up)
        before + layer + r + whole + (dropout && !sp ? h : 0) + 3 * F,
        before + layer + r + whole + (dropout ? r : 0) + F,
        // gate and up: their gradient is as large as they were
        before + layer + r + column,
        // o: its input's gradient; the core: dq, dk, dv and delta, o has gone; q, k, v: like gate and up
        before + attention + r + whole + (dropout ? r : 0) + q,
        before + attention - q + r + q + lse + (q + 2 * kv),
        before + r + input + rstd + r + (q + 2 * kv) + column,
    };
    return std::llround(std::min(*std::max_element(std::begin(moments), std::end(moments)) * tokens, 9e18));  // thirds are not exact
}

// The same in the book's terms: what one layer keeps, in units of s b h.
inline void print_layer_formula(const StepShape& shape, const TensorOptions& o, int64_t rank) {
    const LlamaConfig& c = shape.config;
    const HeadSplit heads = split_heads(c, o.tp, rank);
    const double h = double(c.hidden), sbh = double(shape.micro_batch * shape.seq) * h * double(dtype_bytes(shape.model.dtype));
    const double norms = o.sequence_parallel ? 2.0 / o.tp : 2, inputs = o.sequence_parallel && !o.keep_gathered ? 2.0 / o.tp : 2;
    const double inside = 2 * double(heads.q_rows.size() + heads.kv_rows.size() + c.ffn / o.tp) / h;
    print(fmt::format("  a layer's activations: s b h of {} x (norms' inputs {:.4g} + linears' inputs {:.4g} +", format_bytes(sbh),
                      norms, inputs));
    print(fmt::format("    q k v o, gate, up {:.4g}) = {}; {}", inside, format_bytes(sbh * (norms + inputs + inside)),
                      shape.model.recompute == Recompute::full ? "of all layers but one only the input is kept"
                                                               : "and 4 bytes a row for each norm and head"));
}

inline MemoryEstimate predict_memory(const StepShape& shape, const TensorOptions& options, int64_t rank) {
    const int64_t n = local_parameter_count(shape.config, options.tp, rank);
    return {.parameters = n * dtype_bytes(shape.model.dtype),
            .gradients = n * dtype_bytes(shape.grad_dtype),
            .optimizer = n * optimizer_bytes(shape.model.dtype),
            .peak_activations = predicted_activations(shape, options, rank)};
}

// Of the rank that holds most: the last one, which has the largest share of the vocabulary.
inline MemoryEstimate predict_most_memory(const StepShape& shape, const TensorOptions& options) {
    return predict_memory(shape, options, options.tp - 1);
}

// The largest micro-batch that fits into `limit` bytes on every rank, and can be shared out with --partition-checkpoints; 0: none does.
inline int64_t largest_micro_batch(StepShape shape, const TensorOptions& options, int64_t limit) {
    int64_t fits = 0, too_large = 10'000'000;
    while (too_large - fits > 1) {
        shape.micro_batch = (fits + too_large) / 2;
        (predict_most_memory(shape, options).total() <= limit ? fits : too_large) = shape.micro_batch;
    }
    return fits - (options.partition_checkpoints ? fits % (options.tp / std::gcd(shape.seq, options.tp)) : 0);
}

// Throws UserError if some rank's estimate is above `limit` bytes.
inline void check_fits(const StepShape& shape, const TensorOptions& options, int64_t limit) {
    const MemoryEstimate most = predict_most_memory(shape, options);
    if (most.total() <= limit) return;
    const int64_t largest = largest_micro_batch(shape, options, limit);
    check_fits(
        most, limit,
        fmt::format("{}less is needed with a larger --tp{}{}", largest > 0 ? fmt::format("--micro-batch {} would fit; ", largest) : "",
                    options.sequence_parallel ? "" : ", --sequence-parallel",
                    shape.model.recompute == Recompute::full ? "" : ", --recompute full"));
}

// Of one step with A micro-batches on each of `replicas` data-parallel groups.
inline PredictedCommunication predict_communication(const StepShape& shape, const TensorOptions& o, int64_t A, int64_t replicas,
                                                    int64_t rank) {
    const LlamaConfig& c = shape.config;
    const bool sp = o.sequence_parallel;
    const int64_t L = c.layers, tokens = shape.micro_batch * shape.seq, bytes = tokens * c.hidden * dtype_bytes(shape.model.dtype);
    const int64_t C = row_chunks(o, tokens);
    const int64_t forwards = shape.model.recompute == Recompute::full ? 2 : 1;  // of a layer
    PredictedCommunication p;
    // tensors of (N, h), each in `calls` calls
    const auto send = [&](Collective kind, int64_t tensors, int64_t calls) { p.add(kind, A * tensors * calls, A * tensors * bytes, o.tp); };
    const int64_t g = dtype_bytes(shape.grad_dtype), n = local_parameter_count(c, o.tp, rank);
    const HeadSplit heads = split_heads(c, o.tp, rank);
    if (replicas > 1)  // data parallelism: each parameter; the loss
        p.add(Collective::all_reduce, 9 * L + (c.tied ? 2 : 3) + 1, n * g + 8, int(replicas));
    if (o.tp == 1) return p;

    if (!sp) {
        send(Collective::all_reduce, 2 * L * forwards, C);  // o and down, in forward
        send(Collective::all_reduce, 2 * L, 1);             // q, k, v and gate, up, in backward
        send(Collective::all_reduce, 2, 1);                 // embedding; the head's backward
        if (o.partition_checkpoints) send(Collective::all_gather, L, 1);
    } else {
        send(Collective::all_gather, 2 * L * forwards + 2 * L, C);      // in front of column linears; in backward of row linears
        send(Collective::reduce_scatter, 2 * L * forwards + 2 * L, C);  // the other way round
        send(Collective::all_gather, 2, C);                             // head; the embedding's backward
        send(Collective::reduce_scatter, 2, C);                         // embedding; the head's backward
        if (!o.keep_gathered) send(Collective::all_gather, 2 * L + 1, C);
    }
    p.add(Collective::all_gather, A, A * 3 * 4 * tokens * o.tp, o.tp);  // of the loss
    if (sp) p.add(Collective::all_reduce, 2 * L + 1, (2 * L + 1) * c.hidden * g, o.tp);  // norms
    if (heads.copies > 1) p.add(Collective::all_reduce, 2 * L, 2 * L * heads.kv_rows.size() * c.hidden * g, int(heads.copies));
    p.add(Collective::all_reduce, 1, 8, o.tp);  // the gradient's norm
    return p;
}

}  // namespace ultrascale
