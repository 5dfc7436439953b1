// Attention's kernels skip tiles in which no query sees a key. Which tiles they compute shows when
// an input is not a number: it reaches every result of its tile, since those that do not see it add
// 0 NaN = NaN.
#include <gtest/gtest.h>

#include <functional>

#include "attention_reference.h"
#include "core/device.h"

namespace ultrascale {
namespace {

using namespace attention_test;

// The sequence is n blocks of tokens, and whole tiles of all kernels fit into a block.
#ifdef ULTRASCALE_SIMT
constexpr int64_t block = 32;
#else
constexpr int64_t block = 128;
#endif
constexpr int64_t n = 4;

Tensor block_of(const Tensor& x, int64_t i) { return x.view({n, x.numel() / n}).slice(i, i + 1); }

// Returns how many pairs of a block of `input` and one of `output` the kernel computes.
int64_t computed(const Tensor& input, const Tensor& output, const std::function<void()>& kernel) {
    const Tensor kept = Tensor::empty(input.shape(), input.dtype(), Memory::workspace);
    ops::copy(kept, input);
    int64_t pairs = 0;
    for (int64_t i = 0; i < n; ++i) {
        ops::copy(block_of(input, i), poisoned({1, input.numel() / n}, input.dtype()));
        kernel();
        for (int64_t j = 0; j < n; ++j) {
            const Doubles got = to_double(block_of(output, j));
            pairs += std::ranges::any_of(got, [](double x) { return std::isnan(x); });
        }
        ops::copy(block_of(input, i), block_of(kept, i));
    }
    return pairs;
}

// Checks that all kernels compute so many pairs of a block of queries and one of keys.
void expect_computed(const ops::AttentionMask& mask, int64_t pairs) {
    // Without a GPU's tensor cores, heads of 16 numbers are as good, and quicker.
    const int64_t T = n * block, D = device_is_gpu() ? 128 : 16;
    const Tensors t({1, T, T, 1, 1, D}, device_is_gpu() ? DType::bf16 : DType::fp32, 3, false);
    const auto forward = [&] { ops::attention_forward(t.o, t.lse, t.q, t.k, t.v, mask); };
    const auto backward = [&] {
        ops::attention_backward(t.dq, t.dk, t.dv, t.dout, t.q, t.k, t.v, t.lse, t.delta, mask);
    };
    const auto check = [&] {
        EXPECT_EQ(computed(t.v, t.o, forward), pairs);
        forward();
        ops::attention_delta(t.delta, t.dout, t.o);
        EXPECT_EQ(computed(t.dout, t.dv, backward), pairs);
    };
    if (device_is_gpu()) check();
    // Hopper's dQ has one factor for all keys, and a NaN among these reaches all of it.
    const NoHopper no_hopper;
    check();
    EXPECT_EQ(computed(t.k, t.dq, backward), pairs);
}

ops::AttentionMask starting_at(const std::function<int64_t(int64_t)>& first) {
    std::vector<int32_t> starts;
    for (int64_t i = 0; i < n * block; ++i) starts.push_back(int32_t(first(i)));
    return {.document_starts = integers(starts, {1, n * block})};
}

TEST(OpsAttentionTiles, WithoutAMaskAreAllComputed) { expect_computed({.causal = false}, n * n); }

TEST(OpsAttentionTiles, AboveTheDiagonalAreSkipped) { expect_computed({}, n * (n + 1) / 2); }

// The first query of each block sees the first key of the block w blocks before.
TEST(OpsAttentionTiles, BehindAWindowAreSkipped) {
    for (const int64_t w : {0, 1, 2}) {
        SCOPED_TRACE(w);
        const int64_t window = w * block + 1;
        expect_computed(
            starting_at([&](int64_t i) { return std::max<int64_t>(i - window + 1, 0); }),
            (w + 1) * n - w * (w + 1) / 2);
    }
}

TEST(OpsAttentionTiles, InsideAPrefixAreComputed) {
    for (const int64_t p : {1, 3}) {
        SCOPED_TRACE(p);
        expect_computed({.prefix = p * block}, n * (n + 1) / 2 + p * (p - 1) / 2);
    }
}

TEST(OpsAttentionTiles, OfOtherDocumentsAreSkipped) {
    for (const int64_t d : {1, 2}) {
        SCOPED_TRACE(d);
        const int64_t tokens = d * block;
        expect_computed(starting_at([&](int64_t i) { return i / tokens * tokens; }),
                        n / d * (d * (d + 1) / 2));
    }
}

}  // namespace
}  // namespace ultrascale
