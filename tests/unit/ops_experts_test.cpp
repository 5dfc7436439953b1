// Rows sorted by expert and returned: the sort, a token's row copied to its choices and their sum,
// and SwiGLU with weights.
#include "06_expert_parallel/kernels/ops_experts.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/device.h"
#include "core/ops.h"
#include "core/ops_fp8.h"
#include "tests/test_util.h"

namespace ultrascale {
namespace {

constexpr DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16};

Tensor unwritten(const Shape& shape) {
    return integers(std::vector<int32_t>(size_t(numel(shape)), 12345), shape);
}

struct Sorted {
    Tensor counts, order, row_map;
};
Sorted sorted(const Tensor& experts, int64_t E) {
    Sorted s = {unwritten({E}), unwritten({experts.numel()}), unwritten(experts.shape())};
    ops::sort_by_expert(s.counts, s.order, s.row_map, experts);
    return s;
}

void expect_sorted(const Tensor& experts, int64_t E) {
    const std::vector<int32_t> expert = experts.to_host<int32_t>();
    Doubles counts(static_cast<size_t>(E)), order, row_map(expert.size(), -1);
    for (int64_t e = 0; e < E; ++e)
        for (size_t i = 0; i < expert.size(); ++i)
            if (expert[i] == e) {
                row_map[i] = double(order.size());
                order.push_back(double(i)), ++counts[size_t(e)];
            }
    order.resize(expert.size());  // dropped choices leave zeros
    const Sorted got = sorted(experts, E);
    EXPECT_EQ(to_double(got.counts), counts);
    EXPECT_EQ(to_double(got.order), order);
    EXPECT_EQ(to_double(got.row_map), row_map);
}

TEST(OpsSortByExpert, AnyChoices) {
    for (const auto& [N, k, E] : std::vector<std::array<int64_t, 3>>{
             {1, 1, 1}, {8, 2, 4}, {37, 2, 8}, {300, 6, 64}, {1100, 8, 128}, {70, 3, 1024}})
        for (const int32_t lowest : {0, -1}) {
            SCOPED_TRACE(fmt::format("N {} k {} E {} from {}", N, k, E, lowest));
            expect_sorted(random_integers({N, k}, lowest, int32_t(E - 1), 81), E);
        }
    expect_sorted(integers(std::vector<int32_t>(600, 2), {200, 3}), 5);  // one expert has all
    expect_sorted(integers(std::vector<int32_t>(10, -1), {10, 1}), 3);   // all are dropped
    const Sorted none = sorted(integers({}, {0, 2}), 3);
    EXPECT_EQ(to_double(none.counts), (Doubles{0, 0, 0}));
#ifndef ULTRASCALE_SIMT  // a kernel cannot report a wrong expert
    if (device_is_gpu()) return;
    EXPECT_THROW(sorted(integers({3}, {1, 1}), 3), std::logic_error);
    EXPECT_THROW(sorted(integers({-2}, {1, 1}), 3), std::logic_error);
#endif
}

TEST(OpsSortByExpert, ATokensRowForEachChoice) {
    const int64_t N = 11, k = 3, E = 4, h = 10;
    const Sorted s = sorted(random_integers({N, k}, 0, E - 1, 82), E);
    const Tensor x = random_tensor({N, h}, DType::bf16, 83),
                 rows = poisoned({N * k, h}, DType::bf16);
    ops::scatter_rows(rows, x, s.row_map);
    const Doubles from = to_double(x), order = to_double(s.order);
    Doubles want;
    for (const double i : order) {
        const auto row = from.begin() + int64_t(i) / k * h;
        want.insert(want.end(), row, row + h);
    }
    EXPECT_EQ(to_double(rows), want);
}

// A token's row goes once to each rank that has experts it chose, and names them.
TEST(OpsExpertsByRank, ARowForEachRank) {
    for (const auto& [N, k, ranks, each] : std::vector<std::array<int64_t, 4>>{
             {1, 1, 1, 1}, {9, 2, 4, 1}, {40, 3, 2, 5}, {300, 6, 8, 8}, {0, 2, 3, 2}})
        for (const int32_t lowest : {0, -1}) {
            SCOPED_TRACE(fmt::format("N {} k {} ranks {} each {}", N, k, ranks, each));
            const Tensor experts = random_integers({N, k}, lowest, int32_t(ranks * each - 1), 83);
            const std::vector<int32_t> expert = experts.to_host<int32_t>();
            Doubles want_ranks, want_named;
            for (int64_t t = 0; t < N; ++t)
                for (int64_t r = 0; r < ranks; ++r) {
                    bool goes = false;
                    for (int64_t j = 0; j < k; ++j) {
                        const int64_t e = expert[size_t(t * k + j)] - r * each;
                        goes |= 0 <= e && e < each;
                    }
                    want_ranks.push_back(goes ? double(r) : -1);
                }
            const Tensor got = unwritten({N, ranks});
            ops::ranks_of_experts(got, experts, each);
            EXPECT_EQ(to_double(got), want_ranks);

            const Sorted s = sorted(got, ranks);
            const Doubles counts = to_double(s.counts);
            const auto S = int64_t(std::reduce(counts.begin(), counts.end()));
            for (const double i : to_double(s.order.slice(0, S)))
                for (int64_t j = 0; j < k; ++j) {
                    const int64_t t = int64_t(i) / ranks, r = int64_t(i) % ranks,
                                  e = expert[size_t(t * k + j)] - r * each;
                    want_named.push_back(0 <= e && e < each ? double(e) : -1);
                }
            const Tensor named = unwritten({S, k});
            ops::experts_of_rows(named, s.row_map, experts, each);
            EXPECT_EQ(to_double(named), want_named);
        }
}

TEST(OpsExpertsByRank, MistakesAreFound) {
    const Tensor experts = integers({0, 1, 2, 3}, {2, 2}),
                 row_map = integers({0, -1, -1, 1}, {2, 2});
    ops::experts_of_rows(unwritten({2, 2}), row_map, experts, 2);
    EXPECT_THROW(ops::ranks_of_experts(unwritten({3, 2}), experts, 2), std::logic_error);
    EXPECT_THROW(ops::ranks_of_experts(unwritten({2, 2}), experts, 0), std::logic_error);
    EXPECT_THROW(ops::experts_of_rows(unwritten({2, 3}), row_map, experts, 2), std::logic_error);
}

// A packed row holds the numbers and scales that ops::quantise computes, in another order, and
// converts back to the same values. Each is off by at most 1/16 of itself, or by half of the
// smallest step.
TEST(OpsFp8Rows, AreQuantisedInBlocks) {
    for (const DType dtype : dtypes)
        for (const auto& [N, h] :
             std::vector<std::pair<int64_t, int64_t>>{{0, 128}, {1, 128}, {5, 384}, {300, 256}}) {
            SCOPED_TRACE(fmt::format("{} N {} h {}", dtype_name(dtype), N, h));
            const Tensor x = random_tensor({N, h}, dtype, 98),
                         packed = poisoned({N, ops::packed_columns(h, dtype)}, dtype),
                         back = poisoned({N, h}, dtype), want = poisoned({N * h / 128, 128}, dtype);
            EXPECT_EQ(packed.bytes(), N * (h + h / 32));
            ops::pack_fp8_rows(packed, x);
            ops::unpack_fp8_rows(back, packed);
            const Tensor blocks = x.view(want.shape());
            const ops::Quantised q = ops::empty_quantised(blocks.rows(), 128, DType::e4m3,
                                                          ops::ScaleGroup::row, Memory::workspace);
            if (N > 0) ops::quantise(q, {}, blocks, {.group = ops::ScaleGroup::row});
            if (N > 0) ops::dequantise(want, q, ops::ScaleGroup::row);
            EXPECT_EQ(to_double(back), to_double(want));
            const Doubles from = to_double(x), to = to_double(back);
            const double narrow = dtype == DType::fp32 ? 0 : 1.0 / 256;  // of the last rounding
            for (size_t first = 0; first < from.size(); first += 128) {
                double largest = 0;
                for (size_t i = first; i < first + 128; ++i)
                    largest = std::max(largest, std::abs(from[i]));
                for (size_t i = first; i < first + 128; ++i)
                    EXPECT_LE(std::abs(to[i] - from[i]),
                              std::max(std::abs(from[i]) * (1.0 / 16 + narrow),
                                       largest / 448 / 1024 * 1.01));
            }
        }
}

TEST(OpsFp8Rows, ZerosInfinitiesAndMistakes) {
    Doubles values(256, 0);
    values[130] = INFINITY, values[131] = 5;
    const Tensor x = tensor_of(values, {2, 128}, DType::fp32),
                 packed = poisoned({2, 33}, DType::fp32), back = poisoned({2, 128}, DType::fp32);
    ops::pack_fp8_rows(packed, x);
    ops::unpack_fp8_rows(back, packed);
    const Doubles to = to_double(back);
    for (size_t i = 0; i < 128; ++i) EXPECT_EQ(to[i], 0);
    for (size_t i = 128; i < 256; ++i) EXPECT_TRUE(std::isnan(to[i]));
    EXPECT_THROW(ops::pack_fp8_rows(poisoned({2, 32}, DType::fp32), x), std::logic_error);
    EXPECT_THROW(ops::pack_fp8_rows(packed, poisoned({2, 96}, DType::fp32)), std::logic_error);
    EXPECT_THROW(ops::unpack_fp8_rows(poisoned({2, 128}, DType::bf16), packed), std::logic_error);
}

struct Sizes {
    int64_t N, k, h;
};
const std::vector<Sizes> sizes = {{1, 1, 1},   {7, 2, 8},    {5, 3, 17},
                                  {33, 6, 64}, {9, 8, 2056}, {3, 2, 4100}};

TEST(OpsSumRows, AndScatterRows) {
    for (const DType dtype : dtypes)
        for (const auto& [N, k, h] : sizes)
            for (const int32_t lowest : {0, -1}) {
                SCOPED_TRACE(fmt::format("{} N {} k {} h {}", dtype_name(dtype), N, k, h));
                const int64_t R = N * k;
                const Sorted s = sorted(random_integers({N, k}, lowest, 4, 84), 5);
                const Tensor rows = random_tensor({R, h}, dtype, 85),
                             residual = random_tensor({N, h}, dtype, 86),
                             x = random_tensor({N, h}, dtype, 87);
                const Doubles row = to_double(rows), from = to_double(x),
                              row_map = to_double(s.row_map);
                Doubles plain(size_t(N * h)), with_residual = to_double(residual),
                                              scattered(size_t(R * h), 7);
                for (int64_t i = 0; i < R; ++i)
                    for (int64_t c = 0; c < h && row_map[size_t(i)] >= 0; ++c) {
                        const size_t at = size_t(int64_t(row_map[size_t(i)]) * h + c),
                                     to = size_t(i / k * h + c);
                        plain[to] += row[at], with_residual[to] += row[at];
                        scattered[at] = from[to];
                    }
                const Tensor y = poisoned({N, h}, dtype);
                ops::sum_rows(y, rows, s.row_map);
                EXPECT_LT(relative_error(y, plain), tolerance(dtype));
                ops::sum_rows(y, rows, s.row_map, residual);
                EXPECT_LT(relative_error(y, with_residual), tolerance(dtype));
                ops::sum_rows(residual, rows, s.row_map, residual);  // in place
                EXPECT_EQ(to_double(residual), to_double(y));

                const Tensor got = tensor_of(Doubles(size_t(R * h), 7), {R, h}, dtype);
                ops::scatter_rows(got, x, s.row_map);
                EXPECT_EQ(to_double(got), scattered);  // rows without an entry keep their 7
            }
}

TEST(OpsSumRows, MistakesAreFound) {
    const Tensor rows = random_tensor({4, 6}, DType::fp32, 89), row_map = integers({3, 1}, {1, 2}),
                 y = poisoned({1, 6}, DType::fp32), two = poisoned({2, 6}, DType::fp32);
    ops::sum_rows(y, rows, row_map);
    EXPECT_THROW(ops::sum_rows(two, rows, row_map), std::logic_error);
    EXPECT_THROW(ops::sum_rows(y, rows, row_map, random_tensor({1, 5}, DType::fp32, 91)),
                 std::logic_error);
    EXPECT_THROW(ops::scatter_rows(rows, two, row_map), std::logic_error);
    EXPECT_THROW(ops::scatter_rows(rows, poisoned({1, 6}, DType::bf16), row_map), std::logic_error);
    if (device_is_gpu()) return;
    EXPECT_THROW(ops::sum_rows(y, rows, integers({3, 4}, {1, 2})), std::logic_error);
    EXPECT_THROW(ops::scatter_rows(rows, y, integers({3, 4}, {1, 2})), std::logic_error);
}

// The router's weight is applied before down_proj: out = w silu(gate) up, and dw = dout .
// silu(gate) up.
TEST(OpsSwiglu, WithWeights) {
    for (const DType dtype : dtypes)
        for (const auto& [N, k, F] : sizes) {
            const Tensor x = random_tensor({N, 2 * F}, dtype, 92),
                         weights = random_tensor({N}, DType::fp32, 93),
                         dout = random_tensor({N, F}, dtype, 94), out = poisoned({N, F}, dtype),
                         dx = poisoned({N, 2 * F}, dtype), dweights = poisoned({N}, DType::fp32);
            const Doubles v = to_double(x), w = to_double(weights), d = to_double(dout);
            Doubles want(size_t(N * F)), want_dx(size_t(N * 2 * F)),
                want_dw(static_cast<size_t>(N));
            for (int64_t n = 0; n < N; ++n)
                for (int64_t i = 0; i < F; ++i) {
                    const size_t at = size_t(n * 2 * F + i), to = size_t(n * F + i);
                    const double g = v[at], u = v[at + size_t(F)], s = 1 / (1 + std::exp(-g)),
                                 scaled = d[to] * w[size_t(n)];
                    want[to] = w[size_t(n)] * g * s * u;
                    want_dx[at] = scaled * u * (s + g * s * (1 - s));
                    want_dx[at + size_t(F)] = scaled * g * s;
                    want_dw[size_t(n)] += d[to] * g * s * u;
                }
            ops::swiglu_forward(out, x, weights);
            EXPECT_LT(relative_error(out, want), tolerance(dtype));
            ops::swiglu_backward(dx, dout, x, weights, dweights);
            EXPECT_EQ(to_double(dout), to_double(out));
            EXPECT_LT(relative_error(dx, want_dx), tolerance(dtype));
            EXPECT_LT(relative_error(dweights, want_dw), 1e-5);
        }
    const Tensor one = random_tensor({1, 2}, DType::fp32, 95);
    EXPECT_THROW(ops::swiglu_forward(one.slice(0, 1), random_tensor({1, 4}, DType::fp32, 96),
                                     random_tensor({2}, DType::fp32, 97)),
                 std::logic_error);
}

}  // namespace
}  // namespace ultrascale
