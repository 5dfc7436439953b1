// Compares the loss over a sharded vocabulary with the unsharded loss in double precision, and
// dropout with the random numbers of random.h.
#include <gtest/gtest.h>

#include <algorithm>

#include "03_tensor_parallel/kernels/ops_cross_entropy_split.h"
#include "core/ops.h"
#include "tests/test_util.h"

namespace ultrascale {
namespace {

constexpr DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16};

double log_sum_exp(const double* x, int64_t V) {
    const double highest = *std::max_element(x, x + V);
    double sum = 0;
    for (int64_t i = 0; i < V; ++i) sum += std::exp(x[i] - highest);
    return std::log(sum) + highest;
}

struct Shards {
    std::vector<int64_t> begins;
    std::vector<Tensor> logits;
    Tensor stats;
};

// Cuts x (N, V) into `n` shards of nearly equal width, and computes each shard's statistics.
Shards shards_of(const Doubles& x, int64_t N, int64_t V, int64_t n, const Tensor& targets,
                 DType dtype) {
    Shards all{.stats = poisoned({n, 3, N}, DType::fp32)};
    for (int64_t r = 0; r < n; ++r) {
        const int64_t begin = V * r / n, end = V * (r + 1) / n;
        Doubles part;
        for (int64_t i = 0; i < N; ++i)
            part.insert(part.end(), x.begin() + i * V + begin, x.begin() + i * V + end);
        all.begins.push_back(begin);
        all.logits.push_back(tensor_of(part, {N, end - begin}, dtype));
        ops::cross_entropy_partial(all.stats.slice(r, r + 1), all.logits.back(), targets, begin);
    }
    return all;
}

TEST(OpsCrossEntropySplit, LossesAndGradientInPlace) {
    for (DType dtype : dtypes)
        for (double size : {1.0, 100.0})
            for (auto [N, V, n] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                      {5, 3, 3},
                                                                      {67, 257, 8},
                                                                      {5, 64, 4},
                                                                      {9, 10007, 2},
                                                                      {3, 32064, 4},
                                                                      {2, 128256, 8}}) {
                const Tensor whole = random_tensor({N, V}, dtype, 31);
                ops::scale(whole, float(size));
                const Doubles x = to_double(whole);
                std::vector<int32_t> target =
                    random_integers({N}, 0, int32_t(V - 1), 32).to_host<int32_t>();
                if (N > 1) target[1] = ops::ignored_target;
                const Tensor targets = integers(target, {N});
                Doubles want(size_t(N), 0);
                const Shards shards = shards_of(x, N, V, n, targets, dtype);
                for (int64_t r = 0; r < n; ++r) {
                    const int64_t begin = shards.begins[size_t(r)],
                                  width = shards.logits[size_t(r)].cols();
                    Doubles gradient(size_t(N * width), 0);
                    for (int64_t i = 0; i < N; ++i) {
                        if (target[size_t(i)] == ops::ignored_target) continue;
                        const double lse = log_sum_exp(&x[size_t(i * V)], V);
                        want[size_t(i)] = lse - x[size_t(i * V + target[size_t(i)])];
                        for (int64_t j = 0; j < width; ++j)
                            gradient[size_t(i * width + j)] =
                                0.25 * (std::exp(x[size_t(i * V + begin + j)] - lse) -
                                        (begin + j == target[size_t(i)]));
                    }
                    const Tensor &logits = shards.logits[size_t(r)],
                                 losses = poisoned({N}, DType::fp32);
                    const Doubles before = to_double(logits);
                    ops::cross_entropy_combine(losses, logits, shards.stats, targets, begin, 0);
                    EXPECT_EQ(to_double(logits), before);  // without dscale nothing is written
                    EXPECT_LT(relative_error(losses, want), 2e-6);
                    ops::cross_entropy_combine(losses, logits, shards.stats, targets, begin, 0.25f);
                    EXPECT_LT(relative_error(losses, want), 2e-6);
                    double squares = 0;
                    for (double g : gradient) squares += g * g;
                    if (squares < 1e-20) continue;  // far from the largest logit
                    // fp16 has steps of 6e-8 below 6e-5, and many of these gradients are that
                    // small.
                    EXPECT_LT(relative_error(logits, gradient), dtype == DType::fp32   ? 1e-5
                                                                : dtype == DType::bf16 ? 5e-3
                                                                                       : 1e-2);
                }
            }
}

// One shard has huge logits, another only -infinity. Neither overflow nor NaN appears.
TEST(OpsCrossEntropySplit, ExtremeLogits) {
    const double inf = std::numeric_limits<double>::infinity();
    const Doubles x = {1e30, 0, -inf, -inf, 3, 2, -1e30, 1e30, -inf, -inf, 1, 1};
    const Tensor targets = integers({0, 1}, {2});
    const Shards shards = shards_of(x, 2, 6, 3, targets, DType::fp32);
    for (size_t r = 0; r < 3; ++r) {
        const Tensor losses = poisoned({2}, DType::fp32);
        ops::cross_entropy_combine(losses, shards.logits[r], shards.stats, targets,
                                   shards.begins[r], 1);
        EXPECT_EQ(to_double(losses), Doubles({0, 0}));
        EXPECT_EQ(to_double(shards.logits[r]), Doubles(4, 0));
    }
}

// Every element is as defined, for ranges that begin and end anywhere, in place or not, with or
// without an addend.
TEST(OpsDropout, IsAFunctionOfTheElementsNumber) {
    const Random random(7, "dropout");
    for (DType dtype : dtypes)
        for (auto [n, first] :
             std::vector<std::pair<int64_t, uint64_t>>{{1, 0},
                                                       {4, 0},
                                                       {5, 3},
                                                       {1000, 1},
                                                       {4096, 8},
                                                       {4096, 6},
                                                       {70001, 123456789012345}}) {
            const Tensor x = random_tensor({n}, dtype, 41), addend = random_tensor({n}, dtype, 42),
                         y = poisoned({n}, dtype);
            const Doubles xs = to_double(x), as = to_double(addend);
            Doubles dropped, added;
            for (int64_t i = 0; i < n; ++i) {
                dropped.push_back(random.uniform(first + uint64_t(i)) > 0.3f
                                      ? xs[size_t(i)] / (1.0 - double(0.3f))
                                      : 0);
                added.push_back(dropped.back() + as[size_t(i)]);
            }
            ops::dropout(y, x, 0.3f, random, first);
            EXPECT_LT(relative_error(y, dropped), tolerance(dtype));
            const Doubles ys = to_double(y);
            for (int64_t i = 0; i < n; ++i)
                EXPECT_EQ(ys[size_t(i)] == 0, dropped[size_t(i)] == 0) << i;
            ops::dropout(y, x, 0.3f, random, first, addend);
            EXPECT_LT(relative_error(y, added), tolerance(dtype));
            ops::dropout(x, x, 0.3f, random, first, addend);
            EXPECT_EQ(to_double(x), to_double(y));
        }
}

TEST(OpsDropout, KeepsTheMean) {
    const int64_t n = 200000;
    const Tensor ones = Tensor::empty({n}, DType::fp32, Memory::activation),
                 y = poisoned({n}, DType::fp32);
    ops::fill(ones, 1);
    for (float p : {0.0f, 0.1f, 0.9f}) {
        ops::dropout(y, ones, p, Random(1, "x"), 0);
        double sum = 0, kept = 0;
        for (double v : to_double(y)) sum += v, kept += v != 0;
        EXPECT_NEAR(sum / double(n), 1, 0.02) << p;
        EXPECT_NEAR(kept / double(n), 1 - p, 0.005) << p;
    }
}

}  // namespace
}  // namespace ultrascale
