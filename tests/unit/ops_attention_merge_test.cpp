// The merge of attention over several blocks of keys, against double precision: up to 64 blocks,
// rows that see no key, log-sum-exps far apart, and blocks of some of the queries.
#include "04_context_parallel/kernels/ops_attention_merge.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/ops.h"
#include "tests/test_util.h"

namespace ultrascale {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
constexpr DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16};

struct Sizes {
    int64_t B, T, H, D;
    Shape o() const { return {B, T, H, D}; }
    Shape lse() const { return {B, H, T}; }
    // Returns the position of the log-sum-exp of row number `row` of o (B, T, H).
    size_t lse_of(int64_t row) const {
        return size_t((row / H / T * H + row % H) * T + row / H % T);
    }
};

struct Partial {  // attention over some of the keys
    Doubles o, lse;
};
Partial random_partial(const Sizes& n, DType dtype, uint64_t seed) {
    Tensor lse = random_tensor(n.lse(), DType::fp32, seed + 1000);
    ops::scale(lse, 3);
    return {to_double(random_tensor(n.o(), dtype, seed)), to_double(lse)};
}

// Merges all parts at once, by the definition: each is weighted with its sum of exponentials.
Partial merged(const Sizes& n, const std::vector<Partial>& parts) {
    Partial all = {Doubles(parts[0].o.size(), 0), Doubles(parts[0].lse.size(), -inf)};
    for (int64_t row = 0; row < n.B * n.T * n.H; ++row) {
        const size_t at = n.lse_of(row);
        double highest = -inf, sum = 0;
        for (const Partial& part : parts) highest = std::max(highest, part.lse[at]);
        if (highest == -inf) continue;
        for (const Partial& part : parts) sum += std::exp(part.lse[at] - highest);
        all.lse[at] = highest + std::log(sum);
        for (const Partial& part : parts)
            if (part.lse[at] != -inf)
                for (int64_t d = 0; d < n.D; ++d)
                    all.o[size_t(row * n.D + d)] +=
                        std::exp(part.lse[at] - all.lse[at]) * part.o[size_t(row * n.D + d)];
    }
    return all;
}

struct Merged {
    Tensor o, lse;
    Merged(const Sizes& n, DType dtype)
        : o(poisoned(n.o(), dtype)),
          lse(tensor_of(Doubles(size_t(n.B * n.T * n.H), -inf), n.lse(), DType::fp32)) {}
    Merged(const Sizes& n, DType dtype, const Partial& is)
        : o(tensor_of(is.o, n.o(), dtype)), lse(tensor_of(is.lse, n.lse(), DType::fp32)) {}
    void add(const Sizes& n, DType dtype, const Partial& part) const {
        ops::attention_merge(o, lse, tensor_of(part.o, n.o(), dtype),
                             tensor_of(part.lse, n.lse(), DType::fp32));
    }
};

// In bf16 every merge rounds the result so far; in fp32 the error stays small.
TEST(OpsAttentionMerge, ManyBlocks) {
    for (const Sizes& n : {Sizes{2, 37, 3, 64}, Sizes{1, 33, 2, 128}, Sizes{2, 5, 1, 7},
                           Sizes{1, 70, 2, 36}, Sizes{1, 3, 2, 200}})
        for (const DType block_dtype : dtypes) {
            double bf16_error_of_few = 0;
            for (const size_t blocks : {1, 2, 5, 64}) {
                SCOPED_TRACE(fmt::format("T {} H {} D {}, {} blocks in {}", n.T, n.H, n.D, blocks,
                                         dtype_name(block_dtype)));
                std::vector<Partial> parts;
                for (size_t i = 0; i < blocks; ++i)
                    parts.push_back(random_partial(n, block_dtype, i));
                const Merged wide(n, DType::fp32), narrow(n, DType::bf16);
                for (const Partial& part : parts)
                    wide.add(n, block_dtype, part), narrow.add(n, block_dtype, part);
                const Partial want = merged(n, parts);
                for (const Tensor& lse : {wide.lse, narrow.lse})
                    EXPECT_LT(relative_error(lse, want.lse), 1e-6);
                // The weights exp(lse_b - lse), which most papers use, round twice as much per
                // block as weights computed from differences, because lse is rounded, too.
                EXPECT_LT(relative_error(wide.o, want.o), blocks == 1 ? 1e-12 : 3e-6);
                const double error = relative_error(narrow.o, want.o);
                EXPECT_LT(error, 2e-2);
                if (blocks == 2) bf16_error_of_few = error;
                if (blocks == 64) {
                    EXPECT_GT(error, 2 * bf16_error_of_few);
                }
            }
        }
}

// A row whose log-sum-exp is -infinity has seen no key, and its o may be anything.
TEST(OpsAttentionMerge, RowsWithoutKeys) {
    const Sizes n = {2, 35, 2, 16};
    for (const DType dtype : dtypes)
        for (const DType block_dtype : dtypes) {
            // Rows 0, 3, ... have seen no key so far; rows 0, 2, 4, ... see none in the block.
            const Partial full = random_partial(n, DType::bf16, 1),
                          full_block = random_partial(n, DType::bf16, 2);
            Partial before = full, block = full_block;
            const auto forget = [&](Partial& part, int64_t row) {
                part.lse[n.lse_of(row)] = -inf;
                std::fill_n(part.o.begin() + row * n.D, n.D, nan);
            };
            for (int64_t row = 0; row < n.B * n.T * n.H; ++row) {
                if (row % 3 == 0) forget(before, row);
                if (row % 2 == 0) forget(block, row);
            }
            const Merged all(n, dtype, before);
            all.add(n, block_dtype, block);
            const Partial both = merged(n, {full, full_block});
            const Doubles o = to_double(all.o), lse = to_double(all.lse);
            for (int64_t row = 0; row < n.B * n.T * n.H; ++row) {
                const size_t at = n.lse_of(row);
                const bool seen = row % 3 != 0, sees = row % 2 != 0;
                const Partial& want = seen && sees ? both : seen ? full : full_block;
                for (size_t i = size_t(row * n.D); i < size_t((row + 1) * n.D); ++i) {
                    if (seen && sees)
                        EXPECT_NEAR(o[i], want.o[i], dtype == DType::fp32 ? 1e-5 : 2e-2);
                    else
                        EXPECT_EQ(o[i], seen || sees ? want.o[i] : 0) << row;
                }
                if (seen && sees)
                    EXPECT_NEAR(lse[at], want.lse[at], 1e-5);
                else
                    EXPECT_EQ(lse[at], seen || sees ? want.lse[at] : -inf) << row;
            }
        }
}

// The part with the far larger log-sum-exp is the result, exactly; equal ones give the mean.
TEST(OpsAttentionMerge, LogSumExpsFarApart) {
    const Sizes n = {1, 8, 1, 5};
    const Doubles before = {100, -100, 50, -50, 0, 1e30, -1e30, 7},
                  block = {-100, 100, -50, 50, 1e30, 0, 0, 7};
    for (const DType dtype : dtypes) {
        const Doubles o = to_double(random_tensor(n.o(), dtype, 3)),
                      o_block = to_double(random_tensor(n.o(), dtype, 4));
        const Merged all(n, dtype, {o, before});
        all.add(n, dtype, {o_block, block});
        const Doubles got = to_double(all.o), lse = to_double(all.lse);
        for (size_t row = 0; row < 7; ++row) {
            EXPECT_EQ(lse[row], double(float(std::max(before[row], block[row])))) << row;
            for (size_t i = row * 5; i < (row + 1) * 5; ++i)
                EXPECT_NEAR(got[i], before[row] > block[row] ? o[i] : o_block[i],
                            dtype == DType::fp32 ? 1e-6 : 1e-2)
                    << row;
        }
        EXPECT_NEAR(lse[7], 7 + std::log(2), 1e-6);
        for (size_t i = 35; i < 40; ++i)
            EXPECT_NEAR(got[i], (o[i] + o_block[i]) / 2, dtype == DType::fp32 ? 1e-6 : 1e-2);
    }
}

// The block has only some of each sequence's queries. The other rows are not touched, whatever they
// hold.
TEST(OpsAttentionMerge, SomeOfTheQueries) {
    const Sizes n = {2, 90, 3, 8};
    for (const DType dtype : dtypes)
        for (const auto& [first, length] :
             {std::pair<int64_t, int64_t>{0, 90}, {0, 45}, {45, 45}, {89, 1}, {13, 40}, {90, 0}}) {
            const Sizes some = {n.B, length, n.H, n.D};
            Partial before = random_partial(n, DType::bf16, 5), whole = before;
            const Partial block = random_partial(some, DType::bf16, 6);
            std::fill(whole.lse.begin(), whole.lse.end(), -inf);
            for (int64_t row = 0; row < n.B * n.T * n.H; ++row) {
                const int64_t b = row / n.H / n.T, t = row / n.H % n.T, h = row % n.H,
                              i = t - first;
                if (i < 0 || i >= length) {
                    std::fill_n(before.o.begin() + row * n.D, n.D, nan);
                    continue;
                }
                const int64_t from = (b * length + i) * n.H + h;
                whole.lse[n.lse_of(row)] = block.lse[some.lse_of(from)];
                std::copy_n(block.o.begin() + from * n.D, n.D, whole.o.begin() + row * n.D);
            }
            const Partial want = merged(n, {before, whole});
            const Merged all(n, dtype, before);
            ops::attention_merge(all.o, all.lse, tensor_of(block.o, some.o(), DType::fp32),
                                 tensor_of(block.lse, some.lse(), DType::fp32), first);
            Doubles o = to_double(all.o), some_o, want_of_some;
            for (size_t i = 0; i < o.size(); ++i) {
                const int64_t t = int64_t(i) / n.D / n.H % n.T;
                if (t < first || t >= first + length) {
                    EXPECT_TRUE(std::isnan(o[i])) << i;
                    continue;
                }
                some_o.push_back(o[i]), want_of_some.push_back(want.o[i]);
            }
            EXPECT_LT(relative_error(some_o, want_of_some), dtype == DType::fp32 ? 1e-6 : 5e-3);
            EXPECT_LT(relative_error(all.lse, want.lse), 1e-6);
        }
}

// Either tensor begins one element past a multiple of 16 bytes, and some rows fit no wide access.
TEST(OpsAttentionMerge, AnyAddress) {
    for (const DType dtype : dtypes)
        for (const DType block_dtype : dtypes)
            for (const int64_t D : {16, 5})
                for (const bool shift_block : {false, true}) {
                    const Sizes n = {1, 12, 1, D};
                    const Partial first = random_partial(n, dtype, 8),
                                  second = random_partial(n, block_dtype, 9);
                    const Merged aligned(n, dtype, first);
                    aligned.add(n, block_dtype, second);
                    const auto stored = [&](const Doubles& values, DType of, bool shift) {
                        const Tensor storage = poisoned({12 * D + 1}, of);
                        const Tensor view = storage.slice(shift, 12 * D + shift).view(n.o());
                        ops::copy(view, tensor_of(values, n.o(), of));
                        return view;
                    };
                    const Tensor o = stored(first.o, dtype, !shift_block),
                                 o_block = stored(second.o, block_dtype, shift_block),
                                 lse = tensor_of(first.lse, n.lse(), DType::fp32);
                    ops::attention_merge(o, lse, o_block,
                                         tensor_of(second.lse, n.lse(), DType::fp32));
                    EXPECT_EQ(to_double(o), to_double(aligned.o));
                    EXPECT_EQ(to_double(lse), to_double(aligned.lse));
                }
}

}  // namespace
}  // namespace ultrascale
