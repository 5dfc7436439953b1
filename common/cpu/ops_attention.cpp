// Attention in tiles with an online softmax (FlashAttention: Dao et al. 2022,
// https://arxiv.org/abs/2205.14135).
//
//   for a tile of queries, for each tile of keys:
//     S = Q K^T / sqrt(D)     P = exp(S - max)     O = O * exp(old max - max) + P V
//   and at the end O / sum(P), lse = max + log(sum(P))
//
// OpenBLAS multiplies the tiles in fp32, each on one thread; bf16 tensors are widened first. Its
// products with a small transposed matrix are slow, so K is transposed once. Tiles without visible
// keys are skipped. The backward is in ops_attention_backward.cpp.
#include "attention.h"

namespace ultrascale::ops {

namespace {

using enum Transpose;
constexpr int64_t q_tile = 64, k_tile = 128;  // OpenBLAS is fastest up to m n k = 10^6

struct Row {  // a row of an online softmax
    float max = -INFINITY, sum = 0;
};

// Replaces the scores of a row by exp(score - max), and by 0 outside [begin, end). Returns the
// factor that rescales the row's sums so far.
float softmax_step(float* s, int64_t width, int64_t begin, int64_t end, Row& row) {
    std::fill(s, s + begin, -INFINITY);
    std::fill(s + end, s + width, -INFINITY);
    float highest = row.max;
#pragma omp simd reduction(max : highest)
    for (int64_t j = 0; j < width; ++j) highest = s[j] > highest ? s[j] : highest;
    const float shift =
        highest == -INFINITY ? 0 : highest;  // no key so far: -inf - 0, not -inf - -inf
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < width; ++j) {
        const float p = exp_fast(s[j] - shift);
        s[j] = p;
        sum += p;
    }
    const float factor = exp_fast(row.max - shift);
    row = {highest, row.sum * factor + sum};
    return factor;
}

struct Forward {
    AttentionSizes n;
    VisibleKeys visible;
    const float *q, *k_transposed, *v;
    float *o, *lse;

    // Computes o and lse of queries [i0, i1) of head h; scores (q_tile, k_tile) is scratch.
    void tile(int64_t b, int64_t h, int64_t i0, int64_t i1, float* scores) const {
        const int64_t rows = i1 - i0, kv = h / n.group(), D = n.D;
        const float* q0 = q + (b * n.Tq + i0) * n.q_row() + h * D;
        const float* kt = k_transposed + (b * n.K + kv) * D * n.Tk;
        float* o0 = o + (b * n.Tq + i0) * n.q_row() + h * D;
        Row row[q_tile];
        KeyRange keys[q_tile];
        int64_t first = n.Tk, last = 0;
        for (int64_t r = 0; r < rows; ++r) {
            keys[r] = visible(b, i0 + r);
            if (keys[r].begin < keys[r].end)
                first = std::min(first, keys[r].begin), last = std::max(last, keys[r].end);
        }
        for (int64_t j0 = first; j0 < last; j0 += k_tile) {
            const int64_t width = std::min(k_tile, last - j0);
            sgemm(no, no, rows, width, D, n.scale(), q0, n.q_row(), kt + j0, n.Tk, 0, scores,
                  k_tile);
            for (int64_t r = 0; r < rows; ++r) {
                const int64_t begin = std::clamp<int64_t>(keys[r].begin - j0, 0, width);
                const int64_t end = std::clamp<int64_t>(keys[r].end - j0, begin, width);
                const float factor = softmax_step(scores + r * k_tile, width, begin, end, row[r]);
                if (j0 == first) continue;
#pragma omp simd
                for (int64_t d = 0; d < D; ++d) o0[r * n.q_row() + d] *= factor;
            }
            sgemm(no, no, rows, D, width, 1, scores, k_tile,
                  v + (b * n.Tk + j0) * n.k_row() + kv * D, n.k_row(), j0 == first ? 0 : 1, o0,
                  n.q_row());
        }
        for (int64_t r = 0; r < rows; ++r) {
            lse[(b * n.H + h) * n.Tq + i0 + r] =
                row[r].max + std::log(row[r].sum);  // no key: -inf + -inf
            const float inverse = row[r].sum > 0 ? 1.0f / row[r].sum : 0.0f;
            if (first >= last) std::fill(o0 + r * n.q_row(), o0 + r * n.q_row() + D, 0.0f);
#pragma omp simd
            for (int64_t d = 0; d < D; ++d) o0[r * n.q_row() + d] *= inverse;
        }
    }
};

}  // namespace

void attention_forward(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionMask& mask) {
    const AttentionSizes n = attention_sizes(q, k, v);
    check(o.numel() == q.numel() && lse.numel() == n.B * n.H * n.Tq,
          "attention_forward: o (B, Tq, H, D), lse (B, H, Tq)");
    const VisibleKeys visible(mask, n);
    OpSpan span("attention_forward", 4.0 * visible.pairs() * double(n.q_row()),
                bytes_of(o, lse, q, k, v));
    const Tensor q32 = widened(q), v32 = widened(v), k_transposed = transposed_heads(widened(k)),
                 o32 = widened_output(o);
    const Tensor scores =
        Tensor::empty({omp_get_max_threads(), q_tile, k_tile}, DType::fp32, Memory::workspace);
    const Forward forward = {n,
                             visible,
                             q32.as<float>(),
                             k_transposed.as<float>(),
                             v32.as<float>(),
                             o32.as<float>(),
                             lse.as<float>()};
    float* scratch = scores.as<float>();
    const int64_t tiles = (n.Tq + q_tile - 1) / q_tile;
#pragma omp parallel for schedule(dynamic)
    for (int64_t x = 0; x < n.B * n.H * tiles; ++x) {
        // The last tile comes first: with a causal mask it has the most work.
        const int64_t i = (tiles - 1 - x % tiles) * q_tile;
        forward.tile(x / tiles / n.H, x / tiles % n.H, i, std::min(i + q_tile, n.Tq),
                     scratch + omp_get_thread_num() * q_tile * k_tile);
    }
    if (o.dtype() != DType::fp32) convert(o, o32);
}

}  // namespace ultrascale::ops
