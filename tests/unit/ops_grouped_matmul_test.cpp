// Grouped products against double precision: empty groups, one group with all rows, odd sizes, rows
// of no group, gradients in bf16 and fp32 that are overwritten or added to.
#include <gtest/gtest.h>

#include "06_expert_parallel/kernels/ops_experts.h"
#include "core/ops.h"
#include "tests/test_util.h"

namespace ultrascale {
namespace {

constexpr DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16};

struct Case {
    std::vector<int32_t> counts;
    int64_t out, in, unused = 0;  // rows of no group
};
// The first kernels for Hopper take 128 rows of 64 columns at a time.
const std::vector<Case> cases = {
    {{3}, 5, 7},
    {{4, 0, 9, 1}, 16, 24, 3},
    {{0, 0, 21, 0}, 8, 40},  // one has all
    {{0, 0}, 8, 16, 2},      // nobody has any
    {{1, 2, 3, 4, 5, 6, 7, 8}, 33, 17, 1},
    {{70, 0, 130, 1}, 72, 136},
#ifndef ULTRASCALE_SIMT  // these would take 20 s without a GPU
    {{129, 127}, 136, 264, 60},
    {{64, 0, 200, 63, 1, 128}, 264, 520, 5},
#endif
};

struct Numbers {
    Case c;
    int64_t G, R;
    Tensor counts, x, w, dy;
    Numbers(const Case& what, DType dtype) : c(what), G(int64_t(c.counts.size())), R(c.unused) {
        for (const int32_t n : c.counts) R += n;
        counts = integers(c.counts, {G});
        x = random_tensor({R, c.in}, dtype, 61), w = random_tensor({G, c.out, c.in}, dtype, 62);
        dy = random_tensor({R, c.out}, dtype, 63);
    }
    // Calls visit(group, row) for every row in a group.
    template <class Visit>
    void for_each_row(Visit&& visit) const {
        int64_t row = 0;
        for (int64_t g = 0; g < G; ++g)
            for (int32_t i = 0; i < c.counts[size_t(g)]; ++i) visit(g, row++);
    }
};

void expect_untouched(const Tensor& rows, int64_t unused) {
    const Doubles all = to_double(rows);
    for (size_t i = all.size() - size_t(unused * rows.cols()); i < all.size(); ++i)
        EXPECT_TRUE(std::isnan(all[i])) << i;
}
Doubles used(const Tensor& rows, int64_t unused) {
    Doubles all = to_double(rows);
    all.resize(all.size() - size_t(unused * rows.cols()));
    return all;
}

TEST(OpsGroupedMatmul, ForwardAndInputGradient) {
    for (const DType dtype : dtypes)
        for (const Case& c : cases) {
            const Numbers n(c, dtype);
            SCOPED_TRACE(fmt::format("{} {} x {}", dtype_name(dtype), c.out, c.in));
            const Doubles x = to_double(n.x), w = to_double(n.w), dy = to_double(n.dy);
            Doubles want_y(size_t((n.R - c.unused) * c.out)),
                want_dx(size_t((n.R - c.unused) * c.in));
            n.for_each_row([&](int64_t g, int64_t r) {
                for (int64_t o = 0; o < c.out; ++o)
                    for (int64_t i = 0; i < c.in; ++i) {
                        const double weight = w[size_t((g * c.out + o) * c.in + i)];
                        want_y[size_t(r * c.out + o)] += x[size_t(r * c.in + i)] * weight;
                        want_dx[size_t(r * c.in + i)] += dy[size_t(r * c.out + o)] * weight;
                    }
            });
            const Tensor y = poisoned({n.R, c.out}, dtype), dx = poisoned({n.R, c.in}, dtype);
            ops::grouped_matmul(y, n.x, n.w, n.counts);
            EXPECT_LT(relative_error(used(y, c.unused), want_y), tolerance(dtype));
            expect_untouched(y, c.unused);
            ops::grouped_matmul_backward_input(dx, n.dy, n.w, n.counts);
            EXPECT_LT(relative_error(used(dx, c.unused), want_dx), tolerance(dtype));
            expect_untouched(dx, c.unused);
        }
}

TEST(OpsGroupedMatmul, WeightGradient) {
    for (const DType dtype : dtypes)
        for (const DType gradient : dtypes)
            for (const Case& c : cases) {
                if (gradient != dtype && gradient != DType::fp32) continue;
                const Numbers n(c, dtype);
                SCOPED_TRACE(fmt::format("{} to {} {} x {}", dtype_name(dtype),
                                         dtype_name(gradient), c.out, c.in));
                const Doubles x = to_double(n.x), dy = to_double(n.dy);
                Doubles want(size_t(n.G * c.out * c.in));
                n.for_each_row([&](int64_t g, int64_t r) {
                    for (int64_t o = 0; o < c.out; ++o)
                        for (int64_t i = 0; i < c.in; ++i)
                            want[size_t((g * c.out + o) * c.in + i)] +=
                                dy[size_t(r * c.out + o)] * x[size_t(r * c.in + i)];
                });
                // Tensor cores do not round each addition.
                const double bound = dtype == DType::bf16 ? std::max(tolerance(gradient), 1e-5)
                                                          : tolerance(gradient);
                const Shape shape = {n.G, c.out, c.in};
                const Tensor dw = poisoned(shape, gradient),
                             other = random_tensor(shape, gradient, 64);
                ops::grouped_matmul_backward_weight(dw, n.dy, n.x, n.counts);
                EXPECT_LT(relative_error(dw, want), bound);
                const Doubles before = to_double(other);
                for (size_t i = 0; i < want.size(); ++i) want[i] += before[i];
                ops::grouped_matmul_backward_weight(dw, n.dy, n.x, n.counts, other);
                EXPECT_LT(relative_error(dw, want), bound);
                ops::grouped_matmul_backward_weight(other, n.dy, n.x, n.counts, other);
                EXPECT_EQ(to_double(other), to_double(dw));
            }
}

TEST(OpsGroupedMatmul, NoRowsAtAll) {
    const Numbers n({{0, 0, 0}, 8, 16}, DType::bf16);
    ops::grouped_matmul(poisoned({0, 8}, DType::bf16), n.x, n.w, n.counts);
    ops::grouped_matmul_backward_input(poisoned({0, 16}, DType::bf16), n.dy, n.w, n.counts);
    const Tensor dw = poisoned({3, 8, 16}, DType::bf16);
    ops::grouped_matmul_backward_weight(dw, n.dy, n.x, n.counts);
    EXPECT_EQ(to_double(dw), Doubles(3 * 8 * 16, 0));
}

TEST(OpsGroupedMatmul, MistakesAreFound) {
    const Numbers n({{2, 3}, 8, 16}, DType::fp32);
    const Tensor y = poisoned({5, 8}, DType::fp32);
    ops::grouped_matmul(y, n.x, n.w, n.counts);
    EXPECT_THROW(ops::grouped_matmul(y, n.x, n.w, integers({2}, {1})), std::logic_error);
    EXPECT_THROW(ops::grouped_matmul(poisoned({5, 7}, DType::fp32), n.x, n.w, n.counts),
                 std::logic_error);
    EXPECT_THROW(ops::grouped_matmul(poisoned({4, 8}, DType::fp32), n.x, n.w, n.counts),
                 std::logic_error);
    EXPECT_THROW(ops::grouped_matmul(y, n.x, n.w.view({16, 16}), n.counts), std::logic_error);
}

}  // namespace
}  // namespace ultrascale
