// Formulas that need no ranks: what a rank of ZeRO x data parallelism x tensor parallelism holds,
// and whether the communication of ZeRO and tensor parallelism hides under computation (the
// playbook's appendix A3).
#pragma once

#include <algorithm>

#include "lab/predict/estimate.h"

namespace ultrascale::zero {

// ---- memory -------------------------------------------------------------------------------------

// The parameters of one rank of `tp`: the ranks share all of them except the norms. Each rank has a
// key-value head of its own: if there are fewer heads than ranks, some hold copies.
inline double parameters_with_tp(const LlamaConfig& c, int64_t tp) {
    const double h = double(c.hidden), t = double(tp),
                 kv = std::max(double(c.kv_size()) / t, double(c.head_dim)),
                 layer = 2 * h + h * (double(c.q_size()) / t + 2 * kv) +
                         double(c.q_size()) / t * h + 3 * h * double(c.ffn) / t;
    return (c.tied ? 1 : 2) * double(c.vocab) * h / t + double(c.layers) * layer + h;
}

// The bytes of one of tp x dp ranks in a stage of ZeRO over dp (bf16 with fp32 states: k = 12),
// without padding.
struct RankBytes {
    double parameters, gradients, optimizer;
    double total() const { return parameters + gradients + optimizer; }
};
inline RankBytes rank_bytes(const LlamaConfig& c, int64_t tp, int64_t dp, int stage) {
    const double psi = parameters_with_tp(c, tp), n = double(dp);
    return {2 * psi / (stage >= 3 ? n : 1), 2 * psi / (stage >= 2 ? n : 1),
            12 * psi / (stage >= 1 ? n : 1)};
}

// ---- overlap ------------------------------------------------------------------------------------
//
// N parameters in 2 bytes, T tokens a rank and micro-batch, F FLOP/s, n ranks, w bytes/s of each
// rank's link. A forward computes 2 N T FLOP, a backward 4 N T. The table has the time of the
// communication beside them, as a share of their time, with r = (n-1)/n * F / (w T):
//
//     data parallelism    all-reduce of gradients (4 N bytes) under a backward             r
//     ZeRO-1, 2           reduce-scatter (2 N) under a backward                            r / 2
//                         all-gather (2 N) under the next forward                          r
//     ZeRO-3              all-gather (2 N) under each forward                              r
//                         all-gather and reduce-scatter (4 N) under each backward          r
//
// N cancels: only the tokens count. Below 1 the communication hides. With A micro-batches, data
// parallelism and ZeRO-1 send once for A backwards: a share of r / A. ZeRO-3 sends in each.
//
// Tensor parallelism with sequence parallelism gathers and scatters 4 times in a layer's forward,
// h T numbers each time, under 2 T P/t FLOP (P: a layer's parameters). Here T cancels:
//
//     ratio = 4 h T 2 (t-1)/t / w : 2 T P/t / F = 4 h (t-1) F / (P w)
struct Overlap {
    double data_parallel, zero1_backward, zero1_forward, zero3;
};
inline Overlap overlap_of_zero(double flops, double link, double tokens, int64_t ranks) {
    const double r = double(ranks - 1) / double(ranks) * flops / (link * tokens);
    return {r, r / 2, r, r};
}
inline double overlap_of_tensor_parallelism(const LlamaConfig& c, double flops, double link,
                                            int64_t tp) {
    const double layer =
        double(parameter_count(c) - (c.tied ? 1 : 2) * c.vocab * c.hidden - c.hidden) /
        double(c.layers);
    return 4 * double(c.hidden) * double(tp - 1) * flops / (layer * link);
}

}  // namespace ultrascale::zero
