// Products of 8-bit matrices, the accumulator of tensor cores emulated, and operations whose result
// leaves in 8 bits.
#include <gtest/gtest.h>

#include "08_mixed_precision/accumulator.h"
#include "08_mixed_precision/kernels/ops_quantised.h"
#include "core/device.h"
#include "core/ops.h"
#include "tests/test_util.h"

namespace ultrascale {
using namespace ultrascale::mixed_precision;
namespace {

using enum ops::ScaleGroup;
using ops::Quantised;
using ops::ScaleGroup;
using ops::Scaling;

Quantised quantised(const Tensor& x, DType dtype, const Scaling& s) {
    Quantised y = ops::empty_quantised(x.rows(), x.cols(), dtype, s.group, Memory::activation);
    ops::quantise(y, {}, x, s);
    return y;
}
Doubles exact(const Quantised& y, ScaleGroup group) {
    const Tensor x = poisoned(y.values.shape(), DType::fp32);
    ops::dequantise(x, y, group);
    return to_double(x);
}
Doubles product(const Doubles& a, const Doubles& b, Doubles d, int64_t M, int64_t N, int64_t K) {
    for (int64_t m = 0; m < M; ++m)
        for (int64_t n = 0; n < N; ++n)
            for (int64_t k = 0; k < K; ++k)
                d[size_t(m * N + n)] += a[size_t(m * K + k)] * b[size_t(n * K + k)];
    return d;
}

// Of a GPU's sums 14 bits are exact, of those on the CPU all that fp32 has.
double bound(DType out) {
    if (device_is_gpu()) return 5e-3;
    return out == DType::fp32 ? 2e-6 : tolerance(out);
}

struct Pair {
    ScaleGroup a, b;
};
TEST(OpsFp8Product, AllScalesFormatsOutputsAndAddends) {
    const int64_t sizes[][3] = {{16, 16, 16}, {48, 80, 272}, {144, 272, 384}};
    for (const auto [ga, gb] : {Pair{tensor, tensor}, {row, row}, {tile, block}, {tile, tile}})
        for (const auto& [fa, fb] : {std::pair(DType::e4m3, DType::e4m3),
                                     {DType::e5m2, DType::e4m3},
                                     {DType::e4m3, DType::e5m2}})
            for (const auto& [M, N, K] : sizes) {
                if (*ops::fp8_missing(ga)) continue;
                if (ga == tile && fb == DType::e5m2) continue;  // only gradients may be e5m2
                const Quantised a = quantised(random_tensor({M, K}, DType::fp32, 1), fa, {ga}),
                                b = quantised(random_tensor({N, K}, DType::bf16, 2), fb, {gb});
                const Doubles want =
                    product(exact(a, ga), exact(b, gb), Doubles(size_t(M * N), 0), M, N, K);
                for (DType out : {DType::fp32, DType::bf16, DType::fp16})
                    for (bool add : {false, true}) {
                        const Tensor d =
                            add ? random_tensor({M, N}, out, 3) : poisoned({M, N}, out);
                        Doubles sum = want;
                        const Doubles start = to_double(d);
                        for (size_t i = 0; add && i < sum.size(); ++i) sum[i] += start[i];
                        ops::matmul_fp8(d, a, b, {ga, gb}, add ? d : Tensor());
                        EXPECT_LT(relative_error(d, sum), bound(out))
                            << int(ga) << int(gb) << " " << M << " " << dtype_name(out) << add;
                        if (!add) continue;
                        // the same from another tensor, which stays as it is
                        const Tensor residual = tensor_of(start, {M, N}, out),
                                     other = poisoned({M, N}, out);
                        ops::matmul_fp8(other, a, b, {ga, gb}, residual);
                        EXPECT_LT(relative_error(other, sum), bound(out)) << int(ga) << int(gb);
                        EXPECT_EQ(to_double(residual), start);
                    }
            }
}

TEST(OpsFp8Product, RefusesWhatDoesNotFit) {
    const Tensor x = random_tensor({32, 128}, DType::fp32, 1), d = poisoned({32, 32}, DType::fp32);
    const Quantised whole = quantised(x, DType::e4m3, {}),
                    tiles = quantised(x, DType::e4m3, {tile});
    EXPECT_THROW(ops::matmul_fp8(d, whole, tiles, {tensor, tile}), std::logic_error);
    EXPECT_THROW(ops::matmul_fp8(d, whole, whole, {tile, tile}), std::logic_error);
    EXPECT_THROW(ops::matmul_fp8(x, whole, whole, {}), std::logic_error);
    EXPECT_THROW(ops::matmul_fp8(d, whole, whole, {}, x), std::logic_error);
}

// The three products of a linear, from one x, W and dy in DeepSeek-V3's scales, against double: one
// number has lost up to 1/16 of itself, a sum of products with random losses some 3 %.
TEST(OpsFp8Product, ALinearForwardInputAndWeight) {
    const int64_t N = 256, h = 384, F = 144;
    const Tensor x = random_tensor({N, h}, DType::bf16, 1),
                 w = random_tensor({F, h}, DType::bf16, 2),
                 dy = random_tensor({N, F}, DType::bf16, 3);
    const auto both = [](const Tensor& t, ScaleGroup group) {
        const int64_t R = t.rows(), C = t.cols();
        std::array two = {ops::empty_quantised(R, C, DType::e4m3, group, Memory::activation),
                          ops::empty_quantised(C, R, DType::e4m3, group, Memory::activation)};
        ops::quantise(two[0], two[1], t, {group});
        return two;
    };
    const auto [x8, xt8] = both(x, tile);
    const auto [w8, wt8] = both(w, block);
    const auto [dy8, dyt8] = both(dy, tile);
    const Tensor y = poisoned({N, F}, DType::bf16), dx = poisoned({N, h}, DType::bf16),
                 dw = Tensor::zeros({F, h}, DType::fp32, Memory::gradient);
    ops::matmul_fp8(y, x8, w8, {tile, block});
    ops::matmul_fp8(dx, dy8, wt8, {tile, block});
    ops::matmul_fp8(dw, dyt8, xt8, {tile, tile}, dw);
    const Tensor want = poisoned({N, F}, DType::fp32), want_dx = poisoned({N, h}, DType::fp32),
                 want_dw = poisoned({F, h}, DType::fp32);
    using enum ops::Transpose;
    ops::matmul(want, x, no, w, yes);
    ops::matmul(want_dx, dy, no, w, no);
    ops::matmul(want_dw, dy, yes, x, no);
    EXPECT_LT(relative_error(y, to_double(want)), 0.05);
    EXPECT_LT(relative_error(dx, to_double(want_dx)), 0.05);
    EXPECT_LT(relative_error(dw, to_double(want_dw)), 0.05);
    EXPECT_GT(relative_error(y, to_double(want)), 0.01);  // it did go through 8 bits
}

// ---- the accumulator ----------------------------------------------------------------------------

// Errors relative to a typical sum, over pairs of random rows in fp8.
struct Errors {
    double typical = 0, worst = 0;
};
Errors errors_of(int64_t K, bool positive, const Accumulator& how) {
    constexpr int64_t n = 24;
    const auto numbers = [&](uint64_t seed) {
        Doubles x = to_double(random_tensor({n, K}, DType::fp32, seed));
        for (double& v : x) v = double(float(e4m3(float(positive ? std::abs(v) : v))));
        return x;
    };
    const Doubles a = numbers(1), b = numbers(2);
    const std::vector<float> af(a.begin(), a.end()), bf(b.begin(), b.end());
    std::vector<float> d(size_t(n * n));
    emulated_matmul(d, af, bf, n, n, K, how);
    const Doubles want = product(a, b, Doubles(size_t(n * n), 0), n, n, K);
    const double norm = std::sqrt(dot(want, want) / double(n * n));
    Errors e;
    for (size_t i = 0; i < d.size(); ++i) {
        const double error = (double(d[i]) - want[i]) / norm;
        e.typical += error * error / double(n * n);
        e.worst = std::max(e.worst, std::abs(error));
    }
    e.typical = std::sqrt(e.typical);
    return e;
}

TEST(Accumulator, FourteenBitsLosePercentsAndPromotionCuresIt) {
    const Errors never = errors_of(4096, true, {14, 0}),
                 promoted = errors_of(4096, true, {14, 128});
    EXPECT_GT(never.typical, 0.01);  // products of one sign: all losses point the same way
    EXPECT_LT(promoted.typical, 1e-3);
    const Errors mixed = errors_of(4096, false, {14, 0}), cured = errors_of(4096, false, {14, 128});
    EXPECT_GT(mixed.worst, 2e-3);
    EXPECT_LT(cured.worst, mixed.worst / 4);
    EXPECT_LT(errors_of(4096, false, {0, 0}).worst, 1e-6);  // exact until the end
    EXPECT_LT(errors_of(4096, true, {0, 128}).worst, 1e-6);
    EXPECT_LT(errors_of(4096, false, {24, 0}).worst, 1e-4);
    // A longer sum loses more, unless it is promoted.
    EXPECT_GT(never.typical, 2 * errors_of(1024, true, {14, 0}).typical);
    EXPECT_LT(promoted.typical, 2 * errors_of(1024, true, {14, 128}).typical);
}

TEST(Accumulator, CutsWhatIsFourteenBitsBehind) {
    std::vector<float> a(64, 0), b(64, 1);
    a[0] = 1, a[32] = 0x1p-13f, a[33] = 0x1.8p-14f;
    EXPECT_EQ(emulated_dot(a, b, {14, 0}), 1 + 0x1p-13f);                // a[33] is cut off
    EXPECT_EQ(emulated_dot(a, b, {14, 32}), 1 + 0x1p-13f + 0x1.8p-14f);  // beside a[32] it counts
    EXPECT_EQ(emulated_dot(a, b, {0, 0}), 1 + 0x1p-13f + 0x1.8p-14f);
    a[0] = -1;  // towards zero for both signs
    EXPECT_EQ(emulated_dot(a, b, {14, 0}), -1 + 0x1p-13f);
    a[32] = 0, a[33] = -0x1p-14f;
    EXPECT_EQ(emulated_dot(a, b, {14, 0}), -1);
    EXPECT_THROW(emulated_dot(a, b, {14, 40}), std::logic_error);
}

// ---- fused --------------------------------------------------------------------------------------

// Bit for bit on the CPU; on GPUs the share of codes that differ, and the scales' largest relative
// difference.
void expect_same(const Quantised& got, const Quantised& want, const char* what) {
    const Doubles a = to_double(got.values), b = to_double(want.values), s = to_double(got.scales),
                  t = to_double(want.scales);
    size_t other = 0;
    for (size_t i = 0; i < a.size(); ++i) other += a[i] != b[i];
    if (!device_is_gpu()) {
        EXPECT_EQ(other, 0u) << what;
        EXPECT_EQ(s, t) << what;
        return;
    }
    // Two kernels may add up a row in another order. A sum whose last bit differs moves a number
    // past the middle between two codes now and then, and a scale with it.
    EXPECT_LE(other, 1 + a.size() / 200) << what;
    EXPECT_LT(relative_error(a, b), 0.02) << what;
    for (size_t i = 0; i < s.size(); ++i) EXPECT_NEAR(s[i] / t[i], 1, 1e-2) << what;
}

const Scaling fused[] = {{tile}, {tile, true}, {row}, {tensor}, {.given = true}};

TEST(OpsFp8Fused, RmsNormAndSwiGluEqualTheOperationAndThenQuantise) {
    constexpr int64_t sizes[][2] = {{1, 8},    {3, 130},  {37, 384},  {10, 1000}, {9, 2048},
                                    {2, 4096}, {1, 8192}, {2, 12104}, {1, 16400}};
    for (const auto& [R, C] : sizes)
        for (const auto& [dtype, format] : {std::pair(DType::fp32, DType::e4m3),
                                            {DType::bf16, DType::e4m3},
                                            {DType::bf16, DType::e5m2},
                                            {DType::fp16, DType::e4m3}})
            for (const Scaling& s : fused) {
                const Tensor x = random_tensor({R, C}, dtype, 1),
                             weight = random_tensor({C}, dtype, 2),
                             gate_up = random_tensor({R, 2 * C}, dtype, 3);
                const Tensor rstd = poisoned({R}, DType::fp32),
                             amax = Tensor::zeros({1}, DType::fp32, Memory::activation),
                             want_amax = Tensor::zeros({1}, DType::fp32, Memory::activation),
                             plain = poisoned({R, C}, dtype), same = poisoned({R}, DType::fp32);
                const Tensor one = s.group == tensor ? amax : Tensor(),
                             want_one = s.group == tensor ? want_amax : Tensor();
                Quantised got = ops::empty_quantised(R, C, format, s.group, Memory::activation),
                          want = ops::empty_quantised(R, C, format, s.group, Memory::activation);
                if (s.given) got.scales = want.scales = tensor_of({0.01}, {1}, DType::fp32);
                ops::rmsnorm_forward_quantised(got, rstd, x, weight, 1e-5f, s, one);
                ops::rmsnorm_forward(plain, same, x, weight, 1e-5f);
                ops::quantise(want, {}, plain, s, want_one);
                expect_same(got, want, "norm");
                EXPECT_LT(relative_error(rstd, to_double(same)), 1e-6);
                if (one) {
                    EXPECT_NEAR(to_double(amax)[0] / to_double(want_amax)[0], 1,
                                device_is_gpu() ? 1e-2 : 0);
                }

                ops::fill(amax, 0), ops::fill(want_amax, 0);
                ops::swiglu_forward_quantised(got, gate_up, s, one);
                ops::swiglu_forward(plain, gate_up);
                ops::quantise(want, {}, plain, s, want_one);
                expect_same(got, want, "swiglu");
                if (one) {
                    EXPECT_NEAR(to_double(amax)[0] / to_double(want_amax)[0], 1,
                                device_is_gpu() ? 1e-2 : 0);
                }
            }
}

}  // namespace
}  // namespace ultrascale
