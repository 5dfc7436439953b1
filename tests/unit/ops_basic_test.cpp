// Element-wise operations, sums, matrix products, embedding and AdamW against double precision.
#include <gtest/gtest.h>
#include <omp.h>

#include "core/ops.h"
#include "tests/test_util.h"

namespace ultrascale {
namespace {

using enum ops::Transpose;
constexpr DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16};
constexpr int64_t sizes[] = {1, 7, 64, 1009, 100003};

TEST(OpsElementwise, FillScaleAddCopy) {
    for (DType dtype : dtypes)
        for (int64_t n : sizes) {
            Tensor x = poisoned({n}, dtype);
            ops::fill(x, 0.75f);
            EXPECT_EQ(to_double(x), Doubles(size_t(n), 0.75));

            x = random_tensor({n}, dtype, 1 + uint64_t(n));
            Doubles want = to_double(x);
            for (double& value : want) value *= 0.3f;
            ops::scale(x, 0.3f);
            EXPECT_LT(relative_error(x, want), tolerance(dtype));

            for (DType other : dtypes) {
                Tensor y = random_tensor({n}, dtype, 2), addend = random_tensor({n}, other, 3);
                const Doubles more = to_double(addend);
                want = to_double(y);
                for (size_t i = 0; i < want.size(); ++i) want[i] -= 1.5 * more[i];
                ops::add(y, addend, -1.5f);
                EXPECT_LT(relative_error(y, want), tolerance(dtype)) << n;

                const Tensor a = random_tensor({n}, DType::fp32, 4), sum = poisoned({n}, dtype);
                want = to_double(a);
                for (size_t i = 0; i < want.size(); ++i) want[i] += more[i];
                ops::add(sum, a, addend);
                EXPECT_LT(relative_error(sum, want), tolerance(dtype)) << n;
            }
        }
}

TEST(OpsElementwise, CopyConvertsBetweenAllFloats) {
    constexpr DType all[] = {DType::fp32, DType::bf16, DType::fp16};
    for (int64_t n : sizes)
        for (DType from : all)
            for (DType to : all) {
                Tensor source = random_tensor({n}, from, 5), target = poisoned({n}, to);
                ops::copy(target, source);
                EXPECT_EQ(to_double(target), to_double(tensor_of(to_double(source), {n}, to)));
            }
    Tensor integer = random_integers({70001}, -1000000, 1000000, 6),
           copy = random_integers({70001}, 0, 1, 7);
    ops::copy(copy, integer);
    EXPECT_EQ(to_double(copy), to_double(integer));
    Tensor special = tensor_of({NAN, INFINITY, -INFINITY, 3.4e38, -0.0}, {5}, DType::fp32),
           narrow = poisoned({5}, DType::bf16);
    ops::copy(narrow, special);
    EXPECT_TRUE(std::isnan(to_double(narrow)[0]));
    EXPECT_EQ(to_double(narrow)[1], INFINITY);
    EXPECT_EQ(to_double(narrow)[3], INFINITY);
}

TEST(OpsElementwise, SumsAccumulateInDouble) {
    for (DType dtype : dtypes)
        for (int64_t n : sizes) {
            Tensor x = random_tensor({n}, dtype, 8), sum = tensor_of({10}, {1}, DType::fp64);
            Tensor squares = tensor_of({20}, {1}, DType::fp64);
            double want = 10, want_squares = 20;
            for (double value : to_double(x)) want += 0.5 * value, want_squares += value * value;
            ops::accumulate_sum(sum, x, 0.5);
            ops::accumulate_sum_squares(squares, {x});
            EXPECT_NEAR(to_double(sum)[0], want, 1e-9);
            EXPECT_NEAR(to_double(squares)[0], want_squares, 1e-12 * want_squares);
        }
}

TEST(OpsElementwise, FindsWhatIsNotFinite) {
    for (DType dtype : {DType::fp32, DType::bf16, DType::fp16, DType::e4m3, DType::e5m2})
        for (int64_t n : {1, 7, 40000})
            for (double bad : {0.0, double(INFINITY), -double(INFINITY), double(NAN)}) {
                // e4m3 has no infinity, and the conversion to either fp8 format saturates.
                const bool is_bad = bad != 0 && (dtype_bytes(dtype) > 1 || std::isnan(bad));
                for (int64_t at : {int64_t(0), n / 2, n - 1}) {
                    Doubles x(size_t(n), 400);
                    x[size_t(at)] = bad;
                    const Tensor found = integers({0}, {1}), fine = random_tensor({33}, dtype, 1),
                                 suspect = tensor_of(x, {n}, dtype);
                    ops::find_not_finite(found, {fine, suspect.slice(0, n), fine});
                    EXPECT_EQ(to_double(found)[0], is_bad ? 1 : 0) << dtype_name(dtype) << bad;
                    ops::find_not_finite(found, {fine});  // an earlier find stays
                    EXPECT_EQ(to_double(found)[0], is_bad ? 1 : 0);
                }
            }
}

// Computes op(a) op(b) + addend in double precision.
Doubles reference_matmul(const Tensor& a, bool ta, const Tensor& b, bool tb, const Doubles& addend,
                         int64_t M, int64_t N, int64_t K) {
    const Doubles x = to_double(a), y = to_double(b);
    Doubles d = addend;
    for (int64_t m = 0; m < M; ++m)
        for (int64_t k = 0; k < K; ++k)
            for (int64_t n = 0; n < N; ++n)
                d[m * N + n] += x[ta ? k * M + m : m * K + k] * y[tb ? n * K + k : k * N + n];
    return d;
}

TEST(OpsMatmul, AllTransposesSizesAndAddends) {
    const std::vector<std::array<int64_t, 3>> shapes = {{1, 1, 1},     {3, 5, 7},   {64, 64, 64},
                                                        {65, 33, 127}, {2, 101, 1}, {2049, 3, 5}};
    for (DType dtype : dtypes)
        for (auto [M, N, K] : shapes)
            for (bool ta : {false, true})
                for (bool tb : {false, true})
                    for (int addend_kind :
                         {0, 1, 2, 3}) {  // none, another tensor, d itself, fp32 d itself
                        const DType out = addend_kind == 3 ? DType::fp32 : dtype;
                        Tensor a = random_tensor(ta ? Shape{K, M} : Shape{M, K}, dtype, 11);
                        Tensor b = random_tensor(tb ? Shape{N, K} : Shape{K, N}, dtype, 12);
                        Tensor d = poisoned({M, N}, out), addend;
                        if (addend_kind == 1) addend = random_tensor({M, N}, out, 13);
                        if (addend_kind >= 2) addend = d = random_tensor({M, N}, out, 14);
                        Doubles start = addend ? to_double(addend) : Doubles(size_t(M * N), 0);
                        Doubles want = reference_matmul(a, ta, b, tb, start, M, N, K);
                        ops::matmul(d, a, ta ? yes : no, b, tb ? yes : no, addend);
                        EXPECT_LT(relative_error(d, want), tolerance(out))
                            << M << " " << N << " " << K << " " << addend_kind;
                    }
}

TEST(OpsMatmul, LeadingDimensionsAreRowsAndAnEmptySumIsZero) {
    Tensor a = random_tensor({2, 3, 8}, DType::fp32, 15),
           b = random_tensor({5, 8}, DType::fp32, 16), d = poisoned({2, 3, 5}, DType::fp32);
    ops::matmul(d, a, no, b, yes);
    EXPECT_LT(relative_error(d, reference_matmul(a, false, b, true, Doubles(30, 0), 6, 5, 8)),
              1e-6);
    Tensor none = Tensor::empty({0, 4}, DType::fp32, Memory::activation),
           w = poisoned({4, 4}, DType::fp32);
    ops::matmul(w, none, yes, none, no);  // weight gradient of an expert without tokens
    EXPECT_EQ(to_double(w), Doubles(16, 0));
    EXPECT_THROW(ops::matmul(w, a, no, b, yes), std::logic_error);
    EXPECT_GT(ops::measure_matmul_rate(DType::fp32, 64), 1e6);
}

TEST(OpsEmbedding, ForwardAndBackwardWithAShardOfTheVocabulary) {
    for (DType dtype : dtypes)
        for (auto [N, V, h] : std::vector<std::array<int64_t, 3>>{
                 {1, 1, 1}, {13, 5, 3}, {257, 31, 67}, {1000, 3, 64}, {300, 50, 264}})
            for (int64_t first : {int64_t(0), V / 2}) {
                Tensor weight = random_tensor({V, h}, dtype, 21),
                       tokens = random_integers({N}, 0, int32_t(V + V / 2), 22);
                Tensor out = poisoned({N, h}, dtype), dout = random_tensor({N, h}, dtype, 23);
                Tensor dweight = random_tensor({V, h}, dtype, 24);
                Doubles w = to_double(weight), want(size_t(N * h), 0), dwant = to_double(dweight),
                        dy = to_double(dout);
                const std::vector<int32_t> token = tokens.to_host<int32_t>();
                for (int64_t n = 0; n < N; ++n) {
                    const int64_t row = token[size_t(n)] - first;
                    for (int64_t c = 0; row >= 0 && row < V && c < h; ++c) {
                        want[n * h + c] = w[row * h + c];
                        dwant[row * h + c] += dy[n * h + c];
                    }
                }
                ops::embedding_forward(out, tokens, weight, first);
                ops::embedding_backward(dweight, tokens, dout, first);
                EXPECT_EQ(to_double(out), want);
                EXPECT_LT(relative_error(dweight, dwant), tolerance(dtype));
            }
}

TEST(OpsAdamW, EqualsTheDocumentedUpdate) {
    for (DType dtype : dtypes)
        for (int64_t n : {1, 67, 20001})
            for (float max_norm : {0.0f, 1.0f, 1e6f}) {
                Tensor master = random_tensor({n}, DType::fp32, 31),
                       value = dtype == DType::fp32 ? master : poisoned({n}, dtype);
                Tensor m = Tensor::zeros({n}, DType::fp32, Memory::optimizer),
                       v = Tensor::zeros({n}, DType::fp32, Memory::optimizer);
                Doubles p = to_double(master), first(size_t(n), 0), second(size_t(n), 0);
                for (int64_t step = 1; step <= 3; ++step) {
                    Tensor gradient = random_tensor({n}, dtype, 40 + uint64_t(step));
                    Tensor norm = Tensor::zeros({1}, DType::fp64, Memory::workspace);
                    ops::accumulate_sum_squares(norm, {gradient});
                    ops::adamw({{value, master, m, v, gradient, 0.1f}}, norm,
                               {0.01f, 0.9f, 0.95f, 1e-8f, step, max_norm});
                    const double clip =
                        max_norm > 0
                            ? std::min(1.0, max_norm / (std::sqrt(to_double(norm)[0]) + 1e-6))
                            : 1;
                    const Doubles g = to_double(gradient);
                    for (int64_t i = 0; i < n; ++i) {
                        first[i] = 0.9 * first[i] + 0.1 * clip * g[i];
                        second[i] = 0.95 * second[i] + 0.05 * clip * clip * g[i] * g[i];
                        const double mhat = first[i] / (1 - std::pow(0.9, step)),
                                     vhat = second[i] / (1 - std::pow(0.95, step));
                        p[i] = p[i] * (1 - 0.01 * 0.1) - 0.01 * mhat / (std::sqrt(vhat) + 1e-8);
                    }
                }
                EXPECT_LT(relative_error(master, p), 1e-6);
                EXPECT_LT(relative_error(m, first), 1e-6);
                EXPECT_LT(relative_error(v, second), 1e-6);
                EXPECT_LT(relative_error(value, p), tolerance(dtype));
            }
}

// One call with a list of parameters gives the same bits as one call per parameter. One parameter
// is empty, one begins at an odd address.
TEST(OpsAdamW, AListEqualsOneCallEach) {
    for (DType dtype : dtypes) {
        const ops::AdamWSettings settings = {0.01f, 0.9f, 0.95f, 1e-8f, 1, 0.5f};
        std::vector<Doubles> results;
        for (bool list : {false, true}) {
            Tensor norm = Tensor::zeros({1}, DType::fp64, Memory::workspace);
            std::vector<Tensor> gradients;
            std::vector<ops::AdamWItem> items;
            for (int64_t n : {40001, 0, 67, 16384}) {
                const uint64_t seed = 100 + uint64_t(n);
                auto part = [&](DType d, uint64_t s) {
                    return random_tensor({n + 1}, d, s).slice(1, n + 1);
                };
                Tensor master = part(DType::fp32, seed),
                       value = dtype == DType::fp32 ? master : part(dtype, seed);
                Tensor m = part(DType::fp32, 1), v = part(DType::fp32, 2);
                ops::fill(v, 0.5f);
                gradients.push_back(n == 67 ? random_tensor({n}, dtype, 3) : part(dtype, 4));
                items.push_back({value, master, m, v, gradients.back(), n == 67 ? 0.0f : 0.1f});
            }
            Tensor one_by_one = Tensor::zeros({1}, DType::fp64, Memory::workspace);
            for (const Tensor& gradient : gradients)
                ops::accumulate_sum_squares(one_by_one, {gradient});
            ops::accumulate_sum_squares(norm, gradients);
            EXPECT_NEAR(to_double(norm)[0], to_double(one_by_one)[0], 1e-12 * to_double(norm)[0]);
            if (list) ops::adamw(items, norm, settings);
            for (const ops::AdamWItem& item : items)
                if (!list) ops::adamw({item}, norm, settings);
            results.emplace_back();
            for (const ops::AdamWItem& item : items)
                for (const Tensor& t : {item.value, item.master, item.m, item.v})
                    for (double x : to_double(t)) results.back().push_back(x);
        }
        EXPECT_EQ(results[0], results[1]);
    }
    Tensor total = tensor_of({3}, {1}, DType::fp64);
    ops::accumulate_sum_squares(total, {});
    ops::adamw({}, total, {0.01f, 0.9f, 0.95f, 1e-8f, 1, 0.5f});
    EXPECT_EQ(to_double(total)[0], 3);
}

// One thread and five threads give the same bits.
TEST(OpsElementwise, SumsDoNotDependOnTheNumberOfThreads) {
    const int threads = omp_get_max_threads();
    std::vector<Doubles> results;
    for (int count : {1, 5}) {
        omp_set_num_threads(count);
        Tensor x = random_tensor({200003}, DType::fp32, 51),
               sum = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        ops::accumulate_sum(sum, x);
        ops::accumulate_sum_squares(sum, {x});
        Tensor dweight = random_tensor({7, 129}, DType::fp32, 52),
               dout = random_tensor({3001, 129}, DType::fp32, 53);
        ops::embedding_backward(dweight, random_integers({3001}, 0, 6, 54), dout);
        results.push_back(to_double(dweight));
        results.back().push_back(to_double(sum)[0]);
    }
    omp_set_num_threads(threads);
    EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace ultrascale
