// dQ is held open while blocks of keys are added to it.
#include "04_context_parallel/kernels/ops_attention_open.h"

#include <gtest/gtest.h>

#include <array>

#include "attention_reference.h"
#include "core/device.h"

namespace ultrascale {
namespace {

using namespace attention_test;

constexpr int64_t B = 2, T = 400, H = 4, K = 2, cut = 128;

// Tokens begin .. end - 1 of sequence b of x (B, T, heads, D).
Tensor tokens(const Tensor& x, int64_t b, int64_t begin, int64_t end) {
    return x.slice(b, b + 1)
        .view({x.size(1), x.size(2) * x.size(3)})
        .slice(begin, end)
        .view({1, end - begin, x.size(2), x.size(3)});
}

// A causal square with keys before and after the cut. The keys after it, and their values, are
// `longer` times as long.
struct Square {
    Case c;
    Tensors t;
    ops::OpenDq open;
    Tensor dk, dv;
    Square(int64_t D, float longer)
        : c{B, T, T, H, K, D},
          t(c, DType::bf16, 51),
          dk(poisoned(t.k.shape(), DType::fp32)),
          dv(poisoned(t.k.shape(), DType::fp32)) {
        for (const Tensor& x : {t.k, t.v})
            for (int64_t b = 0; b < B; ++b) ops::scale(tokens(x, b, cut, T), longer);
        ops::attention_forward(t.o, t.lse, t.q, t.k, t.v, mask_of(c));
        ops::attention_delta(t.delta, t.dout, t.o);
        open = ops::open_dq(t.dout, t.lse, t.delta, K);
    }
    // Adds the block of queries query .. query_end - 1 and keys key .. key_end - 1.
    void add(int64_t b, int64_t query, int64_t query_end, int64_t key, int64_t key_end, bool adds) {
        const auto keys = [&](const Tensor& x) { return tokens(x, b, key, key_end); };
        const auto queries = [&](const Tensor& x) { return tokens(x, b, query, query_end); };
        ops::attention_backward(open, b, query, keys(dk), keys(dv), queries(t.dout), queries(t.q),
                                keys(t.k), keys(t.v), {.q_offset = query, .k_offset = key}, adds);
    }
    // The later queries see the keys before the cut first. Then come the earlier queries, which see
    // no other keys, and the later keys.
    void add_all() {
        for (int64_t b = 0; b < B; ++b) {
            add(b, cut, T, 0, cut, false);
            add(b, 0, cut, 0, cut, true);
            add(b, cut, T, cut, T, false);
        }
    }
};

TEST(OpsAttentionOpen, BlocksAddUpToTheWhole) {
    for (const int64_t D : {64, 128})
        for (const float longer : {1.f, 0.01f, 8.f}) {
            SCOPED_TRACE(fmt::format("D {}, later keys {} times as long", D, longer));
            Square s(D, longer);
            if (!s.open) GTEST_SKIP() << "for Hopper";
            s.add_all();
            const Reference::Gradients want = s.t.expected(Reference(s.c));
            const Tensor wide = poisoned(s.t.q.shape(), DType::fp32),
                         addend = random_tensor(s.t.q.shape(), DType::fp32, 61);
            ops::close_dq(wide, s.open);
            EXPECT_LT(relative_error(wide, want.dq), 1e-2);
            ops::close_dq(s.t.dq, s.open, addend);
            Doubles sum = to_double(addend);
            for (size_t i = 0; i < sum.size(); ++i) sum[i] += want.dq[i];
            EXPECT_LT(relative_error(s.t.dq, sum), 1e-2);
            EXPECT_LT(relative_error(s.dk, want.dk), 1e-2);
            EXPECT_LT(relative_error(s.dv, want.dv), 1e-2);
        }
}

// Queries that were in no block have gradient zero.
TEST(OpsAttentionOpen, QueriesWithoutABlockHaveZeros) {
    Square s(128, 1);
    if (!s.open) GTEST_SKIP() << "for Hopper";
    s.add(0, cut, T, 0, cut, false);
    ops::close_dq(s.t.dq, s.open);
    const Doubles dq = to_double(s.t.dq);
    const size_t row = size_t(H * 128), first = size_t(cut) * row, sequence = size_t(T) * row;
    for (size_t i = 0; i < 2 * sequence; ++i)
        if (i < first || i >= sequence) {
            ASSERT_EQ(dq[i], 0) << i;
        }
    EXPECT_NE(dq[first], 0);
}

TEST(OpsAttentionOpen, TakesWholeTilesOrTheRest) {
    const Square s(128, 1);
    if (!s.open) GTEST_SKIP() << "for Hopper";
    EXPECT_TRUE(s.open.takes(0, T));
    EXPECT_TRUE(s.open.takes(64, 128));
    EXPECT_TRUE(s.open.takes(320, 80));
    EXPECT_FALSE(s.open.takes(0, 80));
    EXPECT_FALSE(s.open.takes(80, 320));
    const auto keys = tokens(s.t.k, 0, 0, 80), dkeys = tokens(s.dk, 0, 0, 80);
    EXPECT_THROW(ops::attention_backward(s.open, 0, 0, dkeys, dkeys, tokens(s.t.q, 0, 0, 80),
                                         tokens(s.t.q, 0, 0, 80), keys, keys, {}, false),
                 std::logic_error);
}

}  // namespace
}  // namespace ultrascale
