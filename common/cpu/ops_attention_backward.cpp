// The backward of attention in tiles (ops_attention.cpp). It recomputes P = exp(S - lse). With
// dS = P * (dO V^T - delta) / sqrt(D):
//   dV += P^T dO      dK += dS^T Q      dQ += dS K
//
// Both K and V are transposed once. Tiles without visible keys are skipped.
#include "attention.h"

namespace ultrascale::ops {

namespace {

using enum Transpose;
constexpr int64_t q_tile = 128, k_tile = 64;

struct Backward {
    AttentionSizes n;
    VisibleKeys visible;
    const float *q, *k, *k_transposed, *v_transposed, *dout, *lse, *delta;
    float *dq, *dk, *dv;

    // Overwrites scores with P and dprobabilities with dS, both (rows, k_tile), for queries from i0
    // and keys [j0, j0 + width).
    void softmax_backward(float* scores, float* dprobabilities, int64_t b, int64_t h, int64_t i0,
                          int64_t rows, int64_t j0, int64_t width) const {
        for (int64_t r = 0; r < rows; ++r) {
            const KeyRange keys = visible(b, i0 + r);
            const int64_t begin = std::clamp<int64_t>(keys.begin - j0, 0, width);
            const int64_t end = std::clamp<int64_t>(keys.end - j0, begin, width);
            const int64_t at = (b * n.H + h) * n.Tq + i0 + r;
            const float row_lse = lse[at], row_delta = delta[at], scale = n.scale();
            float *p = scores + r * k_tile, *dp = dprobabilities + r * k_tile;
#pragma omp simd
            for (int64_t j = 0; j < width; ++j) {
                p[j] = exp_fast(p[j] - row_lse);
                dp[j] = p[j] * (dp[j] - row_delta) * scale;
            }
            std::fill(p, p + begin, 0.0f), std::fill(p + end, p + width, 0.0f);
            std::fill(dp, dp + begin, 0.0f), std::fill(dp + end, dp + width, 0.0f);
        }
    }

    // Adds the contributions of queries [i0, i1) of heads [h0, h1) and keys [j0, j1) of key head kv
    // in sequence b to dk and dv, and to dq. scratch: 2 * q_tile * k_tile.
    void block(int64_t b, int64_t kv, int64_t h0, int64_t h1, int64_t i0, int64_t i1, int64_t j0,
               int64_t j1, bool add_dkv, bool add_dq, float* scratch) const {
        const int64_t D = n.D, ld = k_tile;
        float *scores = scratch, *dprobabilities = scratch + q_tile * ld;
        for (int64_t j = j0; j < j1; j += k_tile) {
            const int64_t width = std::min(k_tile, j1 - j),
                          key = (b * n.Tk + j) * n.k_row() + kv * D;
            const int64_t column = (b * n.K + kv) * D * n.Tk + j;  // in the transposed tensors
            for (int64_t h = h0; h < h1; ++h) {
                for (int64_t tile = i0; tile < i1; tile += q_tile) {
                    // Covers only the queries from the first to the last one that attends to one of
                    // these keys.
                    auto sees = [&](int64_t i) {
                        const KeyRange keys = visible(b, i);
                        return keys.begin < std::min(keys.end, j + width) && keys.end > j;
                    };
                    int64_t begin = tile, end = std::min(tile + q_tile, i1);
                    while (begin < end && !sees(begin)) ++begin;
                    while (begin < end && !sees(end - 1)) --end;
                    const int64_t rows = end - begin,
                                  query = (b * n.Tq + begin) * n.q_row() + h * D, row = n.q_row();
                    if (rows == 0) continue;
                    sgemm(no, no, rows, width, D, n.scale(), q + query, row, k_transposed + column,
                          n.Tk, 0, scores, ld);
                    sgemm(no, no, rows, width, D, 1, dout + query, row, v_transposed + column, n.Tk,
                          0, dprobabilities, ld);
                    softmax_backward(scores, dprobabilities, b, h, begin, rows, j, width);
                    if (add_dkv) {
                        sgemm(yes, no, width, D, rows, 1, scores, ld, dout + query, row, 1,
                              dv + key, n.k_row());
                        sgemm(yes, no, width, D, rows, 1, dprobabilities, ld, q + query, row, 1,
                              dk + key, n.k_row());
                    }
                    if (add_dq)
                        sgemm(no, no, rows, D, width, 1, dprobabilities, ld, k + key, n.k_row(), 1,
                              dq + query, row);
                }
            }
        }
    }

    // With one thread per key head, a single pass computes everything. With more threads than key
    // heads, one pass over key tiles computes dk and dv, and another one over query tiles dq. Both
    // ways add in the same order.
    void all(float* scratch) const {
        constexpr int64_t scratch_size = 2 * q_tile * k_tile;
        const int64_t key_heads = n.B * n.K, heads = n.B * n.H;
        const int64_t k_tiles = (n.Tk + k_tile - 1) / k_tile;
        const int64_t q_tiles = (n.Tq + q_tile - 1) / q_tile;
        if (key_heads >= omp_get_max_threads()) {
#pragma omp parallel for schedule(dynamic)
            for (int64_t x = 0; x < key_heads; ++x) {
                const int64_t b = x / n.K, kv = x % n.K;
                block(b, kv, kv * n.group(), (kv + 1) * n.group(), 0, n.Tq, 0, n.Tk, true, true,
                      scratch + omp_get_thread_num() * scratch_size);
            }
            return;
        }
#pragma omp parallel for schedule(dynamic)
        for (int64_t x = 0; x < key_heads * k_tiles; ++x) {
            const int64_t b = x / k_tiles / n.K, kv = x / k_tiles % n.K, j = x % k_tiles * k_tile;
            block(b, kv, kv * n.group(), (kv + 1) * n.group(), 0, n.Tq, j,
                  std::min(j + k_tile, n.Tk), true, false,
                  scratch + omp_get_thread_num() * scratch_size);
        }
#pragma omp parallel for schedule(dynamic)
        for (int64_t x = 0; x < heads * q_tiles; ++x) {
            const int64_t b = x / q_tiles / n.H, h = x / q_tiles % n.H, i = x % q_tiles * q_tile;
            block(b, h / n.group(), h, h + 1, i, std::min(i + q_tile, n.Tq), 0, n.Tk, false, true,
                  scratch + omp_get_thread_num() * scratch_size);
        }
    }
};

template <class T>
void delta_rows(float* delta, const T* dout, const T* o, int64_t B, int64_t Tq, int64_t H,
                int64_t D) {
#pragma omp parallel for if (B * Tq * H * D > parallel_threshold)
    for (int64_t n = 0; n < B * Tq; ++n)
        for (int64_t h = 0; h < H; ++h) {
            const T *a = dout + (n * H + h) * D, *b = o + (n * H + h) * D;
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t d = 0; d < D; ++d) sum += float(a[d]) * float(b[d]);
            delta[(n / Tq * H + h) * Tq + n % Tq] = sum;
        }
}

}  // namespace

void attention_delta(Tensor delta, const Tensor& dout, const Tensor& o) {
    const int64_t B = o.size(0), Tq = o.size(1), H = o.size(2), D = o.size(3);
    check(dout.numel() == o.numel() && delta.numel() == B * H * Tq,
          "attention_delta: dout, o (B, Tq, H, D), delta (B, H, Tq)");
    OpSpan span("attention_delta", 2.0 * double(o.numel()), bytes_of(delta, dout, o));
    with_type(o.dtype(), [&]<class T>(T) {
        delta_rows(delta.as<float>(), dout.as<T>(), o.as<T>(), B, Tq, H, D);
    });
}

void attention_backward(Tensor dq, Tensor dk, Tensor dv, const Tensor& dout, const Tensor& q,
                        const Tensor& k, const Tensor& v, const Tensor& lse, const Tensor& delta,
                        const AttentionMask& mask, AttentionAdds add) {
    const AttentionSizes n = attention_sizes(q, k, v);
    check(dout.numel() == q.numel(), "attention_backward: dout is (B, Tq, H, D)");
    check_gradients(dq, dk, dv, q, k, add);
    check(lse.numel() == n.B * n.H * n.Tq && delta.numel() == lse.numel(),
          "attention_backward: lse, delta are (B, H, Tq)");
    const VisibleKeys visible(mask, n);
    OpSpan span("attention_backward", 10.0 * visible.pairs() * double(n.q_row()),
                bytes_of(dq, dk, dv, dout, q, k, v, lse, delta) + (add.dq ? bytes_of(add.dq) : 0) +
                    (add.dkv ? bytes_of(dk, dv) : 0));
    const Tensor q32 = widened(q), k32 = widened(k), dout32 = widened(dout);
    const Tensor k_transposed = transposed_heads(k32), v_transposed = transposed_heads(widened(v));
    const Tensor dq32 = widened_output(dq), dk32 = widened_output(dk), dv32 = widened_output(dv);
    if (!add.dq)
        device_zero(dq32.data(), dq32.bytes());
    else if (add.dq.data() != dq32.data())
        convert(dq32, add.dq);
    if (!add.dkv)
        for (const Tensor& sum : {dk32, dv32}) device_zero(sum.data(), sum.bytes());
    const Tensor scratch =
        Tensor::empty({omp_get_max_threads(), 2, q_tile, k_tile}, DType::fp32, Memory::workspace);
    const Backward backward = {n,
                               visible,
                               q32.as<float>(),
                               k32.as<float>(),
                               k_transposed.as<float>(),
                               v_transposed.as<float>(),
                               dout32.as<float>(),
                               lse.as<float>(),
                               delta.as<float>(),
                               dq32.as<float>(),
                               dk32.as<float>(),
                               dv32.as<float>()};
    backward.all(scratch.as<float>());
    if (dq.dtype() != DType::fp32) convert(dq, dq32);
    if (dk.dtype() != DType::fp32) convert(dk, dk32), convert(dv, dv32);
}

}  // namespace ultrascale::ops
