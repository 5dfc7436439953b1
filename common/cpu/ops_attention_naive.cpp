// Naive attention: the whole matrix of probabilities is written to memory, and the backward reads
// it.
//
//   P = softmax(Q K^T / sqrt(D))    O = P V
//   dV = P^T dO    dP = dO V^T    dS = P * (dP - rowsum(P * dP)) / sqrt(D)
//   dQ = dS K      dK = dS^T Q
#include "attention.h"

namespace ultrascale::ops {

namespace {

using enum Transpose;
constexpr int64_t tile = 64;  // queries at a time: scratch is (tile, Tk), always in fp32

template <class T>
void softmax_row(float* s, T* probabilities, KeyRange keys, int64_t Tk) {
    float highest = -INFINITY, sum = 0;
    for (int64_t j = keys.begin; j < keys.end; ++j) highest = std::max(highest, s[j]);
    std::fill(s, s + keys.begin, -INFINITY);
    std::fill(s + keys.end, s + Tk, -INFINITY);
    const float shift =
        highest == -INFINITY ? 0 : highest;  // a row without keys: all probabilities are 0
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < Tk; ++j) {
        s[j] = exp_fast(s[j] - shift);
        sum += s[j];
    }
    const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
#pragma omp simd
    for (int64_t j = 0; j < Tk; ++j) {
        s[j] *= inverse;
        store(probabilities[j], s[j]);
    }
}

// factors (Tk) = 1 / (1 - p) for the keys of a row that dropout keeps, else 0. `at` is the number
// of the row's first random number.
void draw_row(float* factors, const ProbabilityDropout& dropout, uint64_t at, int64_t Tk) {
    const float factor = 1 / (1 - dropout.p);
    for (int64_t j = 0; j < Tk;) {
        const uint64_t number = at + uint64_t(j);
        const auto uniforms = dropout.random.uniforms(number / 4);
        for (uint64_t u = number % 4; u < 4 && j < Tk; ++u, ++j)
            factors[j] = uniforms[u] > dropout.p ? factor : 0;
    }
}

// Overwrites dp with dS, and p32 with an fp32 copy of the row's probabilities. With dropout's
// factors, dp comes as the gradient of what dropout returned, and p32 leaves as that.
template <class T>
void softmax_backward_row(float* dp, float* p32, const T* probabilities, const float* factors,
                          float scale, int64_t Tk) {
    for (int64_t j = 0; factors && j < Tk; ++j) dp[j] *= factors[j];
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < Tk; ++j) {
        p32[j] = float(probabilities[j]);
        sum += p32[j] * dp[j];
    }
#pragma omp simd
    for (int64_t j = 0; j < Tk; ++j) dp[j] = p32[j] * (dp[j] - sum) * scale;
    for (int64_t j = 0; factors && j < Tk; ++j) p32[j] *= factors[j];
}

// The rows of attention's probabilities, and what dropout does to them.
class DropRows {
public:
    DropRows(const ProbabilityDropout* dropout, const AttentionSizes& n)
        : dropout_(dropout), n_(n) {
        for (const Tensor& kept :
             {dropout ? dropout->mask : Tensor(), dropout ? dropout->dropped : Tensor()})
            check(!kept || kept.numel() == n.B * n.H * n.Tq * n.Tk,
                  "attention_naive: mask and dropped are (B, H, Tq, Tk)");
    }
    explicit operator bool() const { return dropout_; }

    // Drops row i of head h in sequence b, whose probabilities are s.
    template <class T>
    void forward(float* s, float* factors, int64_t b, int64_t h, int64_t i, T) const {
        draw(factors, b, h, i);
        for (int64_t j = 0; j < n_.Tk; ++j) s[j] *= factors[j];
        if (!dropout_->mask) return;
        e4m3* mask = dropout_->mask.as<e4m3>() + first(b, h, i);
        T* dropped = dropout_->dropped.as<T>() + first(b, h, i);
        for (int64_t j = 0; j < n_.Tk; ++j) store(mask[j], factors[j] > 0), store(dropped[j], s[j]);
    }
    // The factors of that row: drawn again, or as the mask says.
    void factors(float* to, int64_t b, int64_t h, int64_t i) const {
        if (!dropout_->mask) return draw(to, b, h, i);
        const e4m3* mask = dropout_->mask.as<e4m3>() + first(b, h, i);
        for (int64_t j = 0; j < n_.Tk; ++j) to[j] = mask[j].bits ? 1 / (1 - dropout_->p) : 0;
    }

private:
    int64_t first(int64_t b, int64_t h, int64_t i) const {
        return ((b * n_.H + h) * n_.Tq + i) * n_.Tk;
    }
    void draw(float* factors, int64_t b, int64_t h, int64_t i) const {
        draw_row(factors, *dropout_,
                 dropout_->first + uint64_t(b) * dropout_->per_sequence + uint64_t(first(0, h, i)),
                 n_.Tk);
    }
    const ProbabilityDropout* dropout_;
    const AttentionSizes& n_;
};

}  // namespace

void attention_naive_forward(Tensor o, Tensor probabilities, const Tensor& q, const Tensor& k,
                             const Tensor& v, const AttentionMask& mask,
                             const ProbabilityDropout* dropout) {
    const AttentionSizes n = attention_sizes(q, k, v);
    check(o.numel() == q.numel(), "attention_naive_forward: o is (B, Tq, H, D)");
    check(probabilities.numel() == n.B * n.H * n.Tq * n.Tk,
          "attention_naive_forward: probabilities are (B, H, Tq, Tk)");
    OpSpan span("attention_naive_forward", 4.0 * double(n.B * n.H * n.Tq) * double(n.Tk * n.D),
                bytes_of(o, q, k, v, probabilities));
    const Tensor q32 = widened(q), k32 = widened(k), v32 = widened(v), o32 = widened_output(o);
    const Tensor scratch =
        Tensor::empty({omp_get_max_threads(), tile + 1, n.Tk}, DType::fp32, Memory::workspace);
    const float *q_data = q32.as<float>(), *k_data = k32.as<float>(), *v_data = v32.as<float>();
    float *o_data = o32.as<float>(), *scores = scratch.as<float>();
    const VisibleKeys visible(mask, n);
    const DropRows drop(dropout, n);
    const int64_t tiles = (n.Tq + tile - 1) / tile;
    with_type(q.dtype(), [&]<class T>(T) {
        T* p = probabilities.as<T>();
#pragma omp parallel for
        for (int64_t x = 0; x < n.B * n.H * tiles; ++x) {
            const int64_t b = x / tiles / n.H, h = x / tiles % n.H, i = x % tiles * tile,
                          rows = std::min(tile, n.Tq - i);
            const int64_t query = (b * n.Tq + i) * n.q_row() + h * n.D,
                          key = b * n.Tk * n.k_row() + h / n.group() * n.D;
            float *s = scores + omp_get_thread_num() * (tile + 1) * n.Tk,
                  *factors = s + tile * n.Tk;
            sgemm(no, yes, rows, n.Tk, n.D, n.scale(), q_data + query, n.q_row(), k_data + key,
                  n.k_row(), 0, s, n.Tk);
            for (int64_t r = 0; r < rows; ++r) {
                softmax_row(s + r * n.Tk, p + ((b * n.H + h) * n.Tq + i + r) * n.Tk,
                            visible(b, i + r), n.Tk);
                if (drop) drop.forward(s + r * n.Tk, factors, b, h, i + r, T{});
            }
            sgemm(no, no, rows, n.D, n.Tk, 1, s, n.Tk, v_data + key, n.k_row(), 0, o_data + query,
                  n.q_row());
        }
    });
    if (o.dtype() != DType::fp32) convert(o, o32);
}

void attention_naive_backward(Tensor dq, Tensor dk, Tensor dv, const Tensor& dout, const Tensor& q,
                              const Tensor& k, const Tensor& v, const Tensor& probabilities,
                              const ProbabilityDropout* dropout) {
    const AttentionSizes n = attention_sizes(q, k, v);
    check(dout.numel() == q.numel() && dq.numel() == q.numel(),
          "attention_naive_backward: dout, dq are (B, Tq, H, D)");
    check(dk.numel() == k.numel() && dv.numel() == k.numel(),
          "attention_naive_backward: dk, dv are (B, Tk, K, D)");
    check(probabilities.numel() == n.B * n.H * n.Tq * n.Tk,
          "attention_naive_backward: probabilities are (B, H, Tq, Tk)");
    OpSpan span("attention_naive_backward", 8.0 * double(n.B * n.H * n.Tq) * double(n.Tk * n.D),
                bytes_of(dq, dk, dv, dout, q, k, v, probabilities));
    const Tensor q32 = widened(q), k32 = widened(k), v32 = widened(v), dout32 = widened(dout);
    const Tensor dq32 = widened_output(dq), dk32 = widened_output(dk), dv32 = widened_output(dv);
    for (const Tensor& sum : {dk32, dv32}) device_zero(sum.data(), sum.bytes());
    const Tensor scratch =
        Tensor::empty({omp_get_max_threads(), 2 * tile + 1, n.Tk}, DType::fp32, Memory::workspace);
    const DropRows drop(dropout, n);
    const float *q_data = q32.as<float>(), *k_data = k32.as<float>(), *v_data = v32.as<float>(),
                *dout_data = dout32.as<float>();
    float *dq_data = dq32.as<float>(), *dk_data = dk32.as<float>(), *dv_data = dv32.as<float>(),
          *buffers = scratch.as<float>();
    with_type(q.dtype(), [&]<class T>(T) {
        const T* p = probabilities.as<T>();
#pragma omp parallel for
        for (int64_t x = 0; x < n.B * n.K;
             ++x) {  // each thread has its own key heads, so no other adds to their dk and dv
            const int64_t b = x / n.K, kv = x % n.K, key = b * n.Tk * n.k_row() + kv * n.D;
            float *dp = buffers + omp_get_thread_num() * (2 * tile + 1) * n.Tk,
                  *p32 = dp + tile * n.Tk, *factors = p32 + tile * n.Tk;
            for (int64_t h = kv * n.group(); h < (kv + 1) * n.group(); ++h)
                for (int64_t i = 0; i < n.Tq; i += tile) {
                    const int64_t rows = std::min(tile, n.Tq - i),
                                  query = (b * n.Tq + i) * n.q_row() + h * n.D;
                    sgemm(no, yes, rows, n.Tk, n.D, 1, dout_data + query, n.q_row(), v_data + key,
                          n.k_row(), 0, dp, n.Tk);
                    for (int64_t r = 0; r < rows; ++r) {
                        if (drop) drop.factors(factors, b, h, i + r);
                        softmax_backward_row(dp + r * n.Tk, p32 + r * n.Tk,
                                             p + ((b * n.H + h) * n.Tq + i + r) * n.Tk,
                                             drop ? factors : nullptr, n.scale(), n.Tk);
                    }
                    sgemm(yes, no, n.Tk, n.D, rows, 1, p32, n.Tk, dout_data + query, n.q_row(), 1,
                          dv_data + key, n.k_row());
                    sgemm(no, no, rows, n.D, n.Tk, 1, dp, n.Tk, k_data + key, n.k_row(), 0,
                          dq_data + query, n.q_row());
                    sgemm(yes, no, n.Tk, n.D, rows, 1, dp, n.Tk, q_data + query, n.q_row(), 1,
                          dk_data + key, n.k_row());
                }
        }
    });
    if (dq.dtype() != DType::fp32) convert(dq, dq32), convert(dk, dk32), convert(dv, dv32);
}

}  // namespace ultrascale::ops
