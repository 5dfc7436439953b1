// The bytes of the tensors that a rank's forward and backward of a micro-batch create, one of each
// kind. activations.cpp adds up those that exist at each moment.
#pragma once

#include "activations.h"

namespace ultrascale {

// Numbers are double: exact up to 2^53 (9 PB), and no overflow for a sequence of 10^12 tokens.
struct TensorBytes {
    // In the residual stream:
    double stream;          // (tokens, h): a residual, a norm's input or output
    double rstd;            // (tokens), fp32: a norm's; LayerNorm has a mean, too
    double mask;            // (tokens, h), a byte each: dropout's, if it is kept
    double embedding_mask;  // the same of the embedding's dropout, if this rank has it
    // Inside a region, between a column linear's input and a row linear's output:
    double whole;        // (tokens, h): a column linear's input, a row linear's output
    double q, kv;        // (tokens, heads D): q or o; k or v
    double lse;          // (tokens, heads), fp32: log-sum-exp or delta; not in naive attention
    double unnormed;     // (tokens, (H + 2 K) D) and a norm's rstd for each head of q and k, if any
    double scores;       // (tokens, heads, T): naive attention's probabilities
    double score_masks;  // their dropout's mask and output, if they are kept
    double features;     // (tokens, F): gate, up, or the input of down
    double up;           // gate and up together, or a GPT's up
    double gelu;         // GELU's output, if it is kept
    double logits;       // (tokens, V)
    double losses;       // (tokens, 1 + 3 per rank), fp32: loss; max, sum, target's logit

    // The outputs of gathering the stream and of scattering the sums; 0 unless a technique does so.
    double gathered, scattered;
    double input;            // a column linear's, as kept
    double kept_input;       // a layer's, which may be kept in fewer bits
    double kept_o, kept_up;  // o; gate and up: as kept, perhaps in fewer bits
    double column_backward;  // dx before and after its sum; the input if gathered again
    double norm_backward;    // a norm's dy, which is that dx, and its dx
    double dropped;          // dy after dropout, in addition to dy

    explicit TensorBytes(const LocalSizes& s) {
        const double e = double(dtype_bytes(s.model.dtype)), D = double(s.head_dim),
                     B = double(s.sequences);
        const double outside = B * double(s.stream_tokens), inside = B * double(s.region_tokens);
        const bool naive = s.model.attention == AttentionKind::naive,
                   again = s.gathers() && !s.keeps_gathered;
        stream = outside * double(s.hidden) * e, whole = inside * double(s.hidden) * e;
        const bool masks = s.model.keep_masks && s.model.dropout > 0;
        rstd = outside * (s.gpt ? 8 : 4), mask = masks ? outside * double(s.hidden) : 0;
        embedding_mask = s.embedding ? mask : 0;
        q = inside * double(s.heads) * D * e, kv = inside * double(s.kv_heads) * D * e;
        lse = naive ? 0 : inside * double(s.heads) * 4;
        unnormed = s.head_norms ? q + 2 * kv + inside * double(s.heads + s.kv_heads) * 4 : 0;
        scores = naive ? inside * double(s.heads) * double(s.seq) * e : 0;
        const bool kept = masks && s.gpt && s.model.recompute.of(0) != Recompute::selective;
        score_masks = kept ? scores / e * (1 + e) : 0;
        features = inside * double(s.features) * e, up = s.gpt ? features : 2 * features;
        gelu = s.gpt && s.model.keep_masks ? features : 0;
        logits = inside * double(s.vocabulary) * e;
        losses = inside * (4 + 12 * double(s.loss_parts));
        input = again ? stream : whole;
        kept_input = input / e * s.kept_input_bytes.value_or(e);
        kept_o = q / e * s.kept_output_bytes.value_or(e);
        kept_up = up / e * s.kept_gate_up_bytes.value_or(e);
        gathered = s.gathers() ? whole : 0, scattered = s.gathers() ? stream : 0;
        column_backward =
            whole + scattered + (again && s.gathers_beside && !s.split_backward ? whole : 0);
        norm_backward = 2 * stream;
        dropped = s.model.dropout > 0 ? stream : 0;
    }
};

}  // namespace ultrascale
