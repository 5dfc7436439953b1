// RMSNorm, RoPE and SwiGLU: forward and backward against double precision, and the double
// precision's backward against central differences of its forward.
#include <gtest/gtest.h>
#include <omp.h>

#include "core/ops.h"
#include "tests/test_util.h"

namespace ultrascale {
namespace {

constexpr DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16};
using Size2 = std::array<int64_t, 2>;

// ---- RMSNorm ------------------------------------------------------------------------------------
constexpr double eps = 1e-5;

Doubles norm_forward(const Doubles& x, const Doubles& w, Doubles* rstd = nullptr) {
    const size_t h = w.size(), N = x.size() / h;
    Doubles y(x.size());
    for (size_t n = 0; n < N; ++n) {
        double squares = 0;
        for (size_t i = 0; i < h; ++i) squares += x[n * h + i] * x[n * h + i];
        const double r = 1 / std::sqrt(squares / double(h) + eps);
        if (rstd) rstd->push_back(r);
        for (size_t i = 0; i < h; ++i) y[n * h + i] = x[n * h + i] * r * w[i];
    }
    return y;
}

void norm_backward(const Doubles& x, const Doubles& w, const Doubles& dy, Doubles& dx,
                   Doubles& dw) {
    const size_t h = w.size(), N = x.size() / h;
    Doubles rstd;
    norm_forward(x, w, &rstd);
    dx.assign(x.size(), 0), dw.assign(h, 0);
    for (size_t n = 0; n < N; ++n) {
        double mean = 0;
        for (size_t i = 0; i < h; ++i)
            mean += dy[n * h + i] * w[i] * x[n * h + i] * rstd[n] / double(h);
        for (size_t i = 0; i < h; ++i) {
            const double xhat = x[n * h + i] * rstd[n];
            dx[n * h + i] = rstd[n] * (dy[n * h + i] * w[i] - xhat * mean);
            dw[i] += dy[n * h + i] * xhat;
        }
    }
}

TEST(OpsRmsNorm, ForwardAndBackward) {
    for (DType dtype : dtypes)
        for (auto [N, h] : std::vector<Size2>{{1, 1},
                                              {3, 7},
                                              {67, 129},
                                              {301, 64},
                                              {5000, 17},
                                              {9, 520},
                                              {5, 2048},
                                              {3, 4096},
                                              {2, 8192},
                                              {2, 16392}}) {
#ifdef ULTRASCALE_SIMT  // so many rows would take 4 s without a GPU
            N = std::min<int64_t>(N, 500);
#endif
            Tensor x = random_tensor({N, h}, dtype, 1), w = random_tensor({h}, dtype, 2),
                   dy = random_tensor({N, h}, dtype, 3);
            Tensor y = poisoned({N, h}, dtype), rstd = poisoned({N}, DType::fp32),
                   dx = poisoned({N, h}, dtype);
            Tensor dw = random_tensor({h}, dtype, 4);
            const Doubles dw_before = to_double(dw);
            Doubles want_rstd, want_dx, want_dw;
            const Doubles want_y = norm_forward(to_double(x), to_double(w), &want_rstd);
            norm_backward(to_double(x), to_double(w), to_double(dy), want_dx, want_dw);
            for (int64_t i = 0; i < h; ++i) want_dw[i] += dw_before[i];

            ops::rmsnorm_forward(y, rstd, x, w, float(eps));
            ops::rmsnorm_backward(dx, dw, dy, x, rstd, w);
            EXPECT_LT(relative_error(y, want_y), tolerance(dtype));
            // rstd is a sum of h numbers, which may be added one by one.
            EXPECT_LT(relative_error(rstd, want_rstd), 1e-6 + 1e-7 * std::sqrt(double(h)));
            EXPECT_LT(relative_error(dw, want_dw), tolerance(dtype));
            const bool cancels = h == 1;  // then dx is only rounding errors
            EXPECT_LT(cancels ? 0 : relative_error(dx, want_dx), tolerance(dtype)) << N << " " << h;

            // With a residual: first in a tensor of its own, then in place.
            Tensor residual = random_tensor({N, h}, dtype, 5), again = residual;
            Doubles want = to_double(residual);
            for (size_t i = 0; i < want.size(); ++i) want[i] += want_dx[i];
            ops::rmsnorm_backward(dx, dw, dy, x, rstd, w, residual);
            EXPECT_LT(relative_error(dx, want), tolerance(dtype));
            ops::rmsnorm_backward(again, dw, dy, x, rstd, w, again);
            EXPECT_LT(relative_error(again, want), tolerance(dtype));

            Tensor first = poisoned({h}, dtype);  // a step's first contribution overwrites
            ops::rmsnorm_backward(dx, first, dy, x, rstd, w, {}, false);
            for (int64_t i = 0; i < h; ++i) want_dw[i] -= dw_before[i];
            EXPECT_LT(relative_error(first, want_dw), tolerance(dtype));
        }
}

TEST(OpsRmsNorm, BackwardEqualsCentralDifferences) {
    const Tensor x = random_tensor({3, 5}, DType::fp32, 6), w = random_tensor({5}, DType::fp32, 7),
                 dy = random_tensor({3, 5}, DType::fp32, 8);
    Tensor y = poisoned({3, 5}, DType::fp32), rstd = poisoned({3}, DType::fp32),
           dx = poisoned({3, 5}, DType::fp32);
    Tensor dw = Tensor::zeros({5}, DType::fp32, Memory::gradient);
    ops::rmsnorm_forward(y, rstd, x, w, float(eps));
    ops::rmsnorm_backward(dx, dw, dy, x, rstd, w);
    const Doubles xs = to_double(x), ws = to_double(w), g = to_double(dy);
    EXPECT_LT(
        relative_error(dx, numerical_gradient(
                               [&](const Doubles& v) { return dot(g, norm_forward(v, ws)); }, xs)),
        1e-5);
    EXPECT_LT(
        relative_error(dw, numerical_gradient(
                               [&](const Doubles& v) { return dot(g, norm_forward(xs, v)); }, ws)),
        1e-5);
}

TEST(OpsRmsNorm, WeightGradientDoesNotDependOnTheNumberOfThreads) {
    const int threads = omp_get_max_threads();
    std::vector<Doubles> results;
    for (int count : {1, 5}) {
        omp_set_num_threads(count);
        Tensor x = random_tensor({999, 65}, DType::fp32, 9),
               w = random_tensor({65}, DType::fp32, 10), rstd = poisoned({999}, DType::fp32);
        Tensor y = poisoned({999, 65}, DType::fp32),
               dw = Tensor::zeros({65}, DType::fp32, Memory::gradient);
        ops::rmsnorm_forward(y, rstd, x, w, float(eps));
        ops::rmsnorm_backward(y, dw, random_tensor({999, 65}, DType::fp32, 11), x, rstd, w);
        results.push_back(to_double(dw));
    }
    omp_set_num_threads(threads);
    EXPECT_EQ(results[0], results[1]);
}

// ---- RoPE ---------------------------------------------------------------------------------------
// Rotates one head (D) by `sign` * position * frequencies.
void turn(double* head, int64_t D, double position, const Doubles& frequencies, double sign) {
    for (int64_t i = 0; i < D / 2; ++i) {
        const double c = std::cos(position * frequencies[i]),
                     s = sign * std::sin(position * frequencies[i]);
        const double a = head[i], b = head[i + D / 2];
        head[i] = a * c - b * s, head[i + D / 2] = b * c + a * s;
    }
}

TEST(OpsRope, ForwardAndItsAdjoint) {
    for (DType dtype : dtypes)
        for (auto [B, T, H, K, D] : std::vector<std::array<int64_t, 5>>{{1, 1, 1, 1, 2},
                                                                        {2, 5, 6, 2, 10},
                                                                        {3, 67, 4, 4, 16},
                                                                        {1, 130, 3, 1, 64},
                                                                        {1, 9, 2, 1, 128}}) {
            const int64_t columns = (H + 2 * K) * D;
            Tensor qkv = random_tensor({B, T, columns}, dtype, 12),
                   positions = random_integers({B, T}, 0, 100, 13);
            Tensor frequencies = random_tensor({D / 2}, DType::fp32, 14);
            Tensor q = poisoned({B, T, H, D}, dtype), k = poisoned({B, T, K, D}, dtype),
                   v = poisoned({B, T, K, D}, dtype);
            Tensor back = poisoned({B, T, columns}, dtype);
            ops::rope_forward(q, k, v, qkv, positions, frequencies);

            const Doubles input = to_double(qkv), frequency = to_double(frequencies),
                          position = to_double(positions);
            Doubles want_q, want_k, want_v;
            for (int64_t n = 0; n < B * T; ++n)
                for (int64_t head = 0; head < H + 2 * K; ++head) {
                    Doubles x(input.begin() + n * columns + head * D,
                              input.begin() + n * columns + (head + 1) * D);
                    if (head < H + K) turn(x.data(), D, position[n], frequency, 1);
                    Doubles& to = head < H ? want_q : head < H + K ? want_k : want_v;
                    to.insert(to.end(), x.begin(), x.end());
                }
            const double bound =
                dtype == DType::fp32 ? 2e-5 : 5e-3;  // an angle of 100 has lost 7 bits
            EXPECT_LT(relative_error(q, want_q), bound);
            EXPECT_LT(relative_error(k, want_k), bound);
            EXPECT_EQ(to_double(v), want_v);
            // The rotation is orthogonal, so its adjoint is its inverse: backward of forward is the
            // input.
            ops::rope_backward(back, q, k, v, positions, frequencies);
            EXPECT_LT(relative_error(back, input), dtype == DType::fp32 ? 1e-6 : 1e-2);
        }
}

TEST(OpsRope, BackwardEqualsCentralDifferences) {
    const int64_t B = 1, T = 3, H = 1, K = 1, D = 4;
    Tensor positions = integers({0, 2, 7}, {B, T}),
           frequencies = tensor_of({1, 0.25}, {2}, DType::fp32);
    Tensor dq = random_tensor({B, T, H, D}, DType::fp32, 15),
           dk = random_tensor({B, T, K, D}, DType::fp32, 16);
    Tensor dv = random_tensor({B, T, K, D}, DType::fp32, 17),
           dqkv = poisoned({B, T, 3 * D}, DType::fp32);
    ops::rope_backward(dqkv, dq, dk, dv, positions, frequencies);
    const Doubles gq = to_double(dq), gk = to_double(dk), gv = to_double(dv),
                  position = to_double(positions);
    auto loss = [&](const Doubles& x) {
        Doubles y = x;
        double sum = 0;
        for (int64_t n = 0; n < T; ++n) {
            turn(&y[n * 12], D, position[n], {1, 0.25}, 1),
                turn(&y[n * 12 + 4], D, position[n], {1, 0.25}, 1);
            for (int64_t i = 0; i < D; ++i)
                sum += gq[n * D + i] * y[n * 12 + i] + gk[n * D + i] * y[n * 12 + 4 + i] +
                       gv[n * D + i] * y[n * 12 + 8 + i];
        }
        return sum;
    };
    EXPECT_LT(relative_error(dqkv, numerical_gradient(
                                       loss, to_double(random_tensor({T * 12}, DType::fp32, 18)))),
              1e-5);
}

// ---- SwiGLU -------------------------------------------------------------------------------------
Doubles swiglu(const Doubles& x, int64_t F) {
    Doubles out;
    for (size_t row = 0; row < x.size(); row += size_t(2 * F))
        for (int64_t i = 0; i < F; ++i)
            out.push_back(x[row + i] / (1 + std::exp(-x[row + i])) * x[row + F + i]);
    return out;
}

TEST(OpsSwiglu, ForwardBackwardAndCentralDifferences) {
    for (DType dtype : dtypes)
        for (auto [N, F] : std::vector<Size2>{{1, 1}, {3, 5}, {67, 257}, {2, 8}, {4, 9000}}) {
            Tensor x = random_tensor({N, 2 * F}, dtype, 19),
                   dout = random_tensor({N, F}, dtype, 20);
            ops::scale(x, 4);
            Tensor out = poisoned({N, F}, dtype), dx = poisoned({N, 2 * F}, dtype);
            const Doubles xs = to_double(x), dy = to_double(dout);
            ops::swiglu_forward(out, x);
            EXPECT_LT(relative_error(out, swiglu(xs, F)), tolerance(dtype));
            const Tensor amax = Tensor::zeros({1}, DType::fp32, Memory::workspace);
            ops::swiglu_backward(dx, dout, x, {}, {}, amax);
            EXPECT_EQ(to_double(dout), to_double(out));  // dout has become the output
            double largest = 0;
            for (const double d : to_double(dx)) largest = std::max(largest, std::abs(d));
            EXPECT_EQ(to_double(amax)[0], largest);
            Tensor without = poisoned({N, 2 * F}, dtype);
            ops::swiglu_backward(without, random_tensor({N, F}, dtype, 20), x);
            EXPECT_EQ(to_double(without), to_double(dx));
            Doubles want(xs.size());
            for (int64_t n = 0; n < N; ++n)
                for (int64_t i = 0; i < F; ++i) {
                    const double g = xs[n * 2 * F + i], u = xs[n * 2 * F + F + i],
                                 s = 1 / (1 + std::exp(-g)), d = dy[n * F + i];
                    want[n * 2 * F + i] = d * u * (s + g * s * (1 - s));
                    want[n * 2 * F + F + i] = d * g * s;
                }
            EXPECT_LT(relative_error(dx, want), tolerance(dtype));
            if (N > 3) continue;
            auto loss = [&, F = F](const Doubles& at) { return dot(dy, swiglu(at, F)); };
            EXPECT_LT(relative_error(dx, numerical_gradient(loss, xs)),
                      dtype == DType::fp32 ? 1e-5 : 5e-3);
        }
    Tensor extreme = tensor_of({-1e30, 200, -200, 0, 1, 1, 1, 1}, {1, 8}, DType::fp32),
           out = poisoned({1, 4}, DType::fp32);
    ops::swiglu_forward(out, extreme);
    EXPECT_NEAR(to_double(out)[0], 0, 1e-7);
    EXPECT_EQ(to_double(out)[1], 200);
    EXPECT_NEAR(to_double(out)[2], 0, 1e-30);
}

}  // namespace
}  // namespace ultrascale
