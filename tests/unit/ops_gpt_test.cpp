// A GPT-2's operations: LayerNorm, GELU, biases, and dropout with masks, against double precision.
#include "core/ops_gpt.h"

#include <gtest/gtest.h>

#include "tests/test_util.h"

namespace ultrascale {
namespace {

constexpr DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16};
using Size2 = std::array<int64_t, 2>;
constexpr double eps = 1e-5;

Doubles norm_forward(const Doubles& x, const Doubles& w, const Doubles& b) {
    const size_t h = w.size(), N = x.size() / h;
    Doubles y(x.size());
    for (size_t n = 0; n < N; ++n) {
        double mean = 0, variance = 0;
        for (size_t i = 0; i < h; ++i) mean += x[n * h + i] / double(h);
        for (size_t i = 0; i < h; ++i)
            variance += (x[n * h + i] - mean) * (x[n * h + i] - mean) / double(h);
        for (size_t i = 0; i < h; ++i)
            y[n * h + i] = (x[n * h + i] - mean) / std::sqrt(variance + eps) * w[i] + b[i];
    }
    return y;
}

// Its gradients by the chain rule through mean and variance, each written out.
struct NormGradients {
    Doubles dx, dw, db;
};
NormGradients norm_backward(const Doubles& x, const Doubles& w, const Doubles& dy) {
    const size_t h = w.size(), N = x.size() / h;
    NormGradients g{Doubles(x.size()), Doubles(h), Doubles(h)};
    for (size_t n = 0; n < N; ++n) {
        double mean = 0, variance = 0, dmean = 0, dvariance = 0;
        for (size_t i = 0; i < h; ++i) mean += x[n * h + i] / double(h);
        for (size_t i = 0; i < h; ++i)
            variance += (x[n * h + i] - mean) * (x[n * h + i] - mean) / double(h);
        const double r = 1 / std::sqrt(variance + eps);
        for (size_t i = 0; i < h; ++i) {
            const double d = dy[n * h + i], centred = x[n * h + i] - mean;
            g.dw[i] += d * centred * r, g.db[i] += d;
            dmean -= d * w[i] * r;
            dvariance -= d * w[i] * centred * r * r * r / 2;
        }
        for (size_t i = 0; i < h; ++i)
            g.dx[n * h + i] = dy[n * h + i] * w[i] * r + dmean / double(h) +
                              dvariance * 2 * (x[n * h + i] - mean) / double(h);
    }
    return g;
}

TEST(OpsLayerNorm, ForwardAndBackward) {
    for (DType dtype : dtypes)
        for (auto [N, h] : std::vector<Size2>{{3, 7},
                                              {67, 129},
                                              {301, 64},
                                              {9, 520},
                                              {40, 768},
                                              {5, 2048},
                                              {2, 8192},
                                              {2, 16392}}) {
#ifdef ULTRASCALE_SIMT  // so many rows, or threads, would take 20 s without a GPU
            N = std::min<int64_t>(N, 20);
            if (h > 2048 && dtype != DType::fp32) continue;
#endif
            const Tensor x = random_tensor({N, h}, dtype, 1), w = random_tensor({h}, dtype, 2),
                         b = random_tensor({h}, dtype, 3), dy = random_tensor({N, h}, dtype, 4);
            const Tensor y = poisoned({N, h}, dtype), statistics = poisoned({N, 2}, DType::fp32),
                         dx = poisoned({N, h}, dtype);
            const Tensor dw = random_tensor({h}, dtype, 5), db = random_tensor({h}, dtype, 6);
            // The longest row's sums, if nothing vectorizes them, round 16,392 times in a row.
            const double allowed = tolerance(dtype) * (h > 8192 ? 2 : 1);
            NormGradients want = norm_backward(to_double(x), to_double(w), to_double(dy));
            const Doubles dw_before = to_double(dw), db_before = to_double(db);
            for (int64_t i = 0; i < h; ++i) want.dw[i] += dw_before[i], want.db[i] += db_before[i];

            ops::layernorm_forward(y, statistics, x, w, b, float(eps));
            ops::layernorm_backward(dx, dw, db, dy, x, statistics, w);
            EXPECT_LT(relative_error(y, norm_forward(to_double(x), to_double(w), to_double(b))),
                      allowed);
            EXPECT_LT(relative_error(dx, want.dx), allowed) << N << " " << h;
            EXPECT_LT(relative_error(dw, want.dw), allowed) << N << " " << h;
            EXPECT_LT(relative_error(db, want.db), allowed) << N << " " << h;

            // With a residual, in place.
            const Tensor residual = random_tensor({N, h}, dtype, 7);
            Doubles sum = to_double(residual);
            for (size_t i = 0; i < sum.size(); ++i) sum[i] += want.dx[i];
            ops::layernorm_backward(residual, dw, db, dy, x, statistics, w, residual);
            EXPECT_LT(relative_error(residual, sum), allowed);

            const Tensor first[] = {poisoned({h}, dtype), poisoned({h}, dtype)};  // overwritten
            ops::layernorm_backward(dx, first[0], first[1], dy, x, statistics, w, {}, false);
            for (int64_t i = 0; i < h; ++i) want.dw[i] -= dw_before[i], want.db[i] -= db_before[i];
            EXPECT_LT(relative_error(first[0], want.dw), allowed);
            EXPECT_LT(relative_error(first[1], want.db), allowed);
        }
}

TEST(OpsLayerNorm, BackwardEqualsCentralDifferences) {
    const Tensor x = random_tensor({3, 5}, DType::fp32, 8), w = random_tensor({5}, DType::fp32, 9),
                 b = random_tensor({5}, DType::fp32, 10),
                 dy = random_tensor({3, 5}, DType::fp32, 11), y = poisoned({3, 5}, DType::fp32),
                 statistics = poisoned({3, 2}, DType::fp32), dx = poisoned({3, 5}, DType::fp32),
                 dw = Tensor::zeros({5}, DType::fp32, Memory::gradient),
                 db = Tensor::zeros({5}, DType::fp32, Memory::gradient);
    ops::layernorm_forward(y, statistics, x, w, b, float(eps));
    ops::layernorm_backward(dx, dw, db, dy, x, statistics, w);
    const Doubles xs = to_double(x), ws = to_double(w), bs = to_double(b), g = to_double(dy);
    const auto by_x = [&](const Doubles& v) { return dot(g, norm_forward(v, ws, bs)); };
    const auto by_w = [&](const Doubles& v) { return dot(g, norm_forward(xs, v, bs)); };
    const auto by_b = [&](const Doubles& v) { return dot(g, norm_forward(xs, ws, v)); };
    EXPECT_LT(relative_error(dx, numerical_gradient(by_x, xs)), 1e-5);
    EXPECT_LT(relative_error(dw, numerical_gradient(by_w, ws)), 1e-5);
    EXPECT_LT(relative_error(db, numerical_gradient(by_b, bs)), 1e-5);
}

double gelu(double x) {
    return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST(OpsGelu, ForwardAndBackward) {
    for (DType dtype : dtypes)
        for (auto [N, F] : std::vector<Size2>{{1, 1}, {7, 13}, {64, 256}}) {
            const Tensor x = random_tensor({N, F}, dtype, 12),
                         dy = random_tensor({N, F}, dtype, 13);
            const Tensor y = poisoned({N, F}, dtype), dx = poisoned({N, F}, dtype);
            Doubles want_y = to_double(x), want_dx = to_double(dy);
            for (size_t i = 0; i < want_y.size(); ++i) {
                const double at = want_y[i], step = 1e-5;
                want_dx[i] *= (gelu(at + step) - gelu(at - step)) / (2 * step);
                want_y[i] = gelu(at);
            }
            ops::gelu_forward(y, x);
            ops::gelu_backward(dx, dy, x);
            EXPECT_LT(relative_error(y, want_y), tolerance(dtype));
            EXPECT_LT(relative_error(dx, want_dx), tolerance(dtype));
            EXPECT_LT(relative_error(dy, want_y), tolerance(dtype));  // overwritten with GELU(x)
        }
    const std::vector<float> ends = {-1e4f, -30, 0, 30, 1e4f};
    const Tensor far = Tensor::from_host<float>(ends, {5}, Memory::workspace),
                 y = poisoned({5}, DType::fp32);
    ops::gelu_forward(y, far);
    const Doubles want = {0, 0, 0, 30, 1e4};
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(to_double(y)[i], want[i], 1e-30) << i;
}

TEST(OpsBias, ProductsAddItAndItsGradientIsTheSumOfRows) {
    for (DType dtype : dtypes)
        for (auto [N, n] : std::vector<Size2>{{1, 1}, {33, 24}, {257, 100}, {1000, 264}}) {
            const int64_t K = 16;
            const Tensor x = random_tensor({N, K}, dtype, 14), w = random_tensor({n, K}, dtype, 15),
                         b = random_tensor({n}, dtype, 16), add = random_tensor({N, n}, dtype, 17);
            for (const Tensor& addend : {Tensor(), add}) {
                const Tensor y = poisoned({N, n}, dtype);
                ops::matmul(y, x, ops::Transpose::no, w, ops::Transpose::yes, addend, b);
                const Doubles xs = to_double(x), ws = to_double(w), bs = to_double(b);
                Doubles want(size_t(N * n));
                if (addend) want = to_double(addend);
                for (int64_t i = 0; i < N * n; ++i) {
                    want[i] += bs[i % n];
                    for (int64_t k = 0; k < K; ++k)
                        want[i] += xs[i / n * K + k] * ws[i % n * K + k];
                }
                EXPECT_LT(relative_error(y, want), tolerance(dtype));
            }
            for (DType wide : {dtype, DType::fp32}) {
                const Tensor db = random_tensor({n}, wide, 18);
                Doubles want = to_double(db), fresh(static_cast<size_t>(n));
                const Doubles dys = to_double(add);
                for (int64_t i = 0; i < N * n; ++i) fresh[i % n] += dys[i];
                for (int64_t i = 0; i < n; ++i) want[i] += fresh[i];
                ops::column_sums(db, add, db);
                EXPECT_LT(relative_error(db, want), tolerance(dtype));
                ops::column_sums(db, add);
                EXPECT_LT(relative_error(db, fresh), tolerance(dtype));
            }
        }
}

TEST(OpsDropoutMask, KeepsWhatDropoutKeeps) {
    const Random random(3, "dropout");
    const float p = 0.3f;
    for (DType dtype : dtypes)
        for (const uint64_t first : {0u, 4u, 5u})
            for (const int64_t n : {1, 8, 1001}) {
                const Tensor x = random_tensor({n}, dtype, 19), add = random_tensor({n}, dtype, 20),
                             mask = Tensor::zeros({n}, DType::e4m3, Memory::activation),
                             want = poisoned({n}, dtype), got = poisoned({n}, dtype);
                ops::dropout_mask(mask, p, random, first);
                for (const Tensor& addend : {Tensor(), add}) {
                    ops::dropout(want, x, p, random, first, addend);
                    ops::dropout_by_mask(got, mask, x, p, addend);
                    EXPECT_LT(relative_error(got, to_double(want)), tolerance(dtype));
                }
            }
}

// Naive attention with dropout against its definition, with each probability's mask drawn one by
// one; kept and drawn again must agree.
class OpsAttentionDropout : public testing::Test {
protected:
    static constexpr int64_t B = 2, T = 9, H = 3, D = 4, first_head = 1, all_heads = 5;
    static constexpr float p = 0.25f;
    Tensor q = random_tensor({B, T, H, D}, DType::fp32, 21),
           k = random_tensor({B, T, H, D}, DType::fp32, 22),
           v = random_tensor({B, T, H, D}, DType::fp32, 23),
           dout = random_tensor({B, T, H, D}, DType::fp32, 24);
    ops::ProbabilityDropout dropout{.p = p,
                                    .random = Random(7, "dropout attention"),
                                    .first = 2 * all_heads * T * T + first_head * T * T,
                                    .per_sequence = all_heads * T * T};

    static int64_t at(int64_t b, int64_t t, int64_t h) { return ((b * T + t) * H + h) * D; }
    Doubles reference(const Doubles& qs, const Doubles& ks, const Doubles& vs) const {
        Doubles o(size_t(B * T * H * D));
        for (int64_t b = 0; b < B; ++b)
            for (int64_t h = 0; h < H; ++h)
                for (int64_t i = 0; i < T; ++i) {
                    Doubles weights;
                    double sum = 0;
                    for (int64_t j = 0; j <= i; ++j) {
                        double score = 0;
                        for (int64_t d = 0; d < D; ++d)
                            score += qs[at(b, i, h) + d] * ks[at(b, j, h) + d];
                        weights.push_back(std::exp(score / std::sqrt(double(D))));
                        sum += weights.back();
                    }
                    for (int64_t j = 0; j <= i; ++j) {
                        // sample 2 + b of the run, head first_head + h of the model
                        const int64_t number =
                            (((2 + b) * all_heads + first_head + h) * T + i) * T + j;
                        if (dropout.random.uniform(uint64_t(number)) <= p) continue;
                        for (int64_t d = 0; d < D; ++d)
                            o[at(b, i, h) + d] +=
                                weights[size_t(j)] / sum / (1 - p) * vs[at(b, j, h) + d];
                    }
                }
        return o;
    }
};

TEST_F(OpsAttentionDropout, ForwardAndBackward) {
    const Doubles qs = to_double(q), ks = to_double(k), vs = to_double(v), g = to_double(dout);
    const Doubles want_o = reference(qs, ks, vs);
    const auto by = [&](int which) {
        return [&, which](const Doubles& x) {
            return dot(g, reference(which == 0 ? x : qs, which == 1 ? x : ks, which == 2 ? x : vs));
        };
    };
    const Doubles want_dq = numerical_gradient(by(0), qs), want_dk = numerical_gradient(by(1), ks),
                  want_dv = numerical_gradient(by(2), vs);
    for (const bool keeps : {false, true}) {
        if (keeps) {
            dropout.mask = Tensor::zeros({B, H, T, T}, DType::e4m3, Memory::activation);
            dropout.dropped = poisoned({B, H, T, T}, DType::fp32);
        }
        const Tensor o = poisoned({B, T, H, D}, DType::fp32),
                     probabilities = poisoned({B, H, T, T}, DType::fp32);
        ops::attention_naive_forward(o, probabilities, q, k, v, {}, &dropout);
        EXPECT_LT(relative_error(o, want_o), 1e-5) << keeps;
        const Tensor dq = poisoned(q.shape(), DType::fp32), dk = poisoned(q.shape(), DType::fp32),
                     dv = poisoned(q.shape(), DType::fp32);
        ops::attention_naive_backward(dq, dk, dv, dout, q, k, v, probabilities, &dropout);
        EXPECT_LT(relative_error(dq, want_dq), 1e-5) << keeps;
        EXPECT_LT(relative_error(dk, want_dk), 1e-5) << keeps;
        EXPECT_LT(relative_error(dv, want_dv), 1e-5) << keeps;
    }
}

}  // namespace
}  // namespace ultrascale
