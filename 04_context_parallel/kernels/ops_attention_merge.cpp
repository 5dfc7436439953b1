// Merges attention over another block of keys into attention over those before.
#include "ops_attention_merge.h"

#include "cpu/ops_common.h"

namespace ultrascale::ops {

namespace {

// One row of D elements and its log-sum-exp.
template <class O, class P>
void merge_row(O* o, float& lse, const P* o_block, float lse_block, int64_t D) {
    // exercise 04.1 begin: no exponent may be positive; a block without keys changes nothing
    if (lse == -INFINITY) {  // no key so far: o may be anything, even NaN
        lse = lse_block;
        const bool seen = lse_block != -INFINITY;
#pragma omp simd
        for (int64_t d = 0; d < D; ++d) store(o[d], seen ? float(o_block[d]) : 0.0f);
        return;
    }
    if (lse_block == -INFINITY) return;
    // No exponent is positive, so nothing overflows, however far apart the two are.
    const float apart = lse_block - lse, e = std::exp(-std::abs(apart)),
                share = (apart > 0 ? 1 : e) / (1 + e);
    lse = std::max(lse, lse_block) + std::log1p(e);
#pragma omp simd
    for (int64_t d = 0; d < D; ++d) {
        const float before = float(o[d]);
        store(o[d], before + share * (float(o_block[d]) - before));
    }
    // exercise 04.1 end
}

}  // namespace

void attention_merge(Tensor o, Tensor lse, const Tensor& o_block, const Tensor& lse_block,
                     int64_t first) {
    const auto [B, T, Tb, H, D] = merge_sizes(o, lse, o_block, lse_block, first);
    OpSpan span("attention_merge", 3.0 * double(o_block.numel()),
                2.0 * double(o_block.numel() * dtype_bytes(o.dtype())) +
                    bytes_of(o_block, lse_block, lse_block, lse_block));
    float* all = lse.as<float>();
    const float* block = lse_block.as<float>();
    with_type(o.dtype(), [&]<class O>(O) {
        with_type(o_block.dtype(), [&]<class P>(P) {
            O* to = o.as<O>();
            const P* from = o_block.as<P>();
#pragma omp parallel for if (o_block.numel() > parallel_threshold)
            for (int64_t n = 0; n < B * Tb; ++n) {
                const int64_t b = n / Tb, i = n % Tb, t = first + i;
                for (int64_t h = 0; h < H; ++h)
                    merge_row(to + ((b * T + t) * H + h) * D, all[(b * H + h) * T + t],
                              from + (n * H + h) * D, block[(b * H + h) * Tb + i], D);
            }
        });
    });
}

}  // namespace ultrascale::ops
