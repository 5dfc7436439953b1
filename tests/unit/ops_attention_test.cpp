// Tiled and naive attention: forward and backward are compared with double precision, and the
// double-precision backward with central differences.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <span>

#include "attention_reference.h"
#include "core/device.h"

namespace ultrascale {
namespace {

using namespace attention_test;

const Case cases[] = {
    {1, 1, 1, 1, 1, 16},
    {2, 7, 7, 2, 2, 10},            // head sizes that no vector fits
    {1, 64, 64, 4, 2, 64},          // one tile exactly
    {2, 131, 131, 6, 2, 16},        // 3:1, several tiles and a remainder
    {1, 523, 523, 2, 1, 64},        // several tiles of keys
    {1, 65, 300, 3, 3, 10, false},  // full, Tq != Tk
    {2, 129, 67, 4, 4, 16, false},
    {1, 70, 333, 2, 1, 32, true, 263, 0},             // the last 70 queries of 333
    {1, 100, 100, 2, 2, 16, true, 37, 0},             // an offset that is not a tile's multiple
    {1, 150, 100, 2, 1, 16, true, 0, 70},             // 70 queries see no key at all
    {1, 80, 90, 2, 2, 16, true, 0, 500},              // no query sees a key
    {2, 200, 200, 4, 2, 16, true, 0, 0, true},        // documents
    {1, 140, 90, 2, 2, 10, true, 60, 30, true},       // documents with offsets
    {1, 130, 130, 2, 1, 16, false, 0, 0, true},       // documents without causality
    {1, 100, 100, 2, 1, 16, true, 1, 3, false, 4},    // every fourth token; key 0 is after query 0
    {1, 100, 100, 2, 1, 16, true, 3, 1, false, 4},    // key 0 is before query 0, by half a stride
    {1, 90, 130, 2, 2, 10, true, 101, 302, true, 3},  // documents begin between the stride's tokens
    {2, 130, 100, 2, 1, 16, true, 100, 1, true, 2},
    {1, 80, 130, 2, 1, 16, false, 1, 0, true, 2},
    {2, 200, 200, 4, 2, 16, true, 0, 0, false, 1, 37},         // a window
    {1, 300, 300, 2, 1, 16, true, 0, 0, true, 1, 21},          // documents, some longer than it
    {1, 100, 90, 2, 1, 16, true, 60, 0, false, 1, 50},         // some queries see no key
    {2, 200, 200, 4, 2, 16, true, 0, 0, false, 1, 0, 77},      // a prefix
    {1, 100, 100, 2, 1, 16, true, 40, 70, false, 1, 0, 120},   // it ends among these keys
    {1, 90, 130, 2, 2, 10, true, 101, 302, false, 3, 0, 500},  // and between the stride's
    {1, 100, 100, 2, 1, 16, true, 500, 0, false, 1, 0, 40},    // it is behind all queries
    {2, 200, 200, 4, 2, 16, true, 0, 0, false, 1, 37, 130},    // both
};
// More cases for the tensor-core kernels' tiles: heads of 64 and 128, 64 to 192 queries and 32 to
// 128 keys at a time.
const Case tile_cases[] = {
    {2, 193, 193, 3, 1, 128},
    {1, 65, 300, 3, 3, 64, false},
    {2, 129, 67, 2, 2, 128, false},
    {1, 70, 333, 2, 1, 128, true, 263, 0},
    {1, 200, 200, 2, 2, 64, true, 37, 0},
    {1, 150, 100, 2, 1, 128, true, 0, 70},
    {1, 260, 200, 2, 1, 64, true, 0, 130},
    {1, 80, 90, 2, 2, 64, true, 0, 500},
    {2, 400, 400, 2, 1, 64, true, 0, 0, true},
    {1, 300, 300, 2, 1, 128, true, 0, 0, true},
    {1, 240, 190, 2, 2, 128, true, 60, 30, true},
    {1, 330, 330, 2, 1, 64, false, 0, 0, true},
    {1, 260, 260, 2, 1, 64, true, 1, 3, false, 4},
    {1, 200, 333, 2, 2, 128, true, 500, 7, true, 4},
    {2, 300, 200, 2, 1, 64, true, 200, 301, true, 3},
    {1, 300, 300, 2, 1, 128, true, 2, 1, true, 2},
    {1, 130, 330, 2, 1, 64, false, 1, 0, true, 2},
    {2, 400, 400, 2, 1, 64, true, 0, 0, false, 1, 100},
    {1, 700, 700, 2, 1, 128, true, 0, 0, false, 1, 70},
    {2, 400, 400, 2, 1, 64, true, 0, 0, false, 1, 0, 230},
    {1, 300, 300, 2, 2, 128, true, 0, 0, false, 1, 0, 299},
    {1, 300, 300, 2, 1, 128, true, 100, 150, false, 1, 0, 300},
    {1, 260, 260, 2, 1, 64, true, 1, 3, false, 4, 0, 500},
    {2, 400, 400, 2, 1, 64, true, 0, 0, false, 1, 90, 230},
};

std::string name(const Case& c, DType dtype) {
    return fmt::format(
        "{} B {} Tq {} Tk {} H {} K {} D {} causal {} offsets {} {} stride {} window {} prefix {}",
        dtype_name(dtype), c.B, c.Tq, c.Tk, c.H, c.K, c.D, c.causal, c.q_offset, c.k_offset,
        c.stride, c.window, c.prefix);
}

// Calls check(case, tensors, expected o, lse and probabilities, expected gradients, bound) for each
// case in all dtypes.
template <class Check>
void for_each_case(std::span<const Case> some, Check check) {
    for (DType dtype : {DType::fp32, DType::bf16, DType::fp16})
        for (Case c : some) {
// Three tiles of the kernels are enough: executing twice as many on the CPU takes a minute.
#ifdef ULTRASCALE_SIMT
            c.Tq = std::min<int64_t>(c.Tq, 260), c.Tk = std::min<int64_t>(c.Tk, 300);
#endif
            SCOPED_TRACE(name(c, dtype));
            Tensors t(c, dtype, 1);
            const Reference reference(c);
            Doubles lse, p;
            const Doubles o =
                reference.forward(to_double(t.q), to_double(t.k), to_double(t.v), &lse, &p);
            check(c, t, o, lse, p, t.expected(reference), dtype == DType::fp32 ? 5e-6 : 1e-2);
        }
}

void expect_tiled_right() {
    const auto check = [](const Case& c, Tensors& t, const Doubles& o, const Doubles& lse,
                          const Doubles&, const Reference::Gradients& want, double bound) {
        ops::attention_forward(t.o, t.lse, t.q, t.k, t.v, mask_of(c));
        EXPECT_LT(relative_error(t.o, o), bound);
        EXPECT_LT(relative_error(t.lse, lse), 1e-5);
        ops::attention_delta(t.delta, t.dout, t.o);
        EXPECT_LT(relative_error(t.delta, want.delta), 3 * bound);
        ops::attention_backward(t.dq, t.dk, t.dv, t.dout, t.q, t.k, t.v, t.lse, t.delta,
                                mask_of(c));
        expect_gradients(t, want, bound);
    };
    for_each_case(cases, check);
#ifdef ULTRASCALE_SIMT  // no tensor cores: only heads of 128 are new
    for_each_case(std::span(tile_cases).first(1), check);
#else
    for_each_case(tile_cases, check);
#endif
}

TEST(OpsAttention, Tiled) { expect_tiled_right(); }

// Tests the other GPUs' kernels on Hopper, too. Without a GPU there are no Hopper kernels.
#ifndef ULTRASCALE_SIMT
TEST(OpsAttention, TiledWithoutHopper) {
    if (!device_is_gpu()) GTEST_SKIP() << "for GPUs";
    const NoHopper no_hopper;
    expect_tiled_right();
}
#endif

TEST(OpsAttention, Naive) {
    for_each_case(cases, [](const Case& c, Tensors& t, const Doubles& o, const Doubles&,
                            const Doubles& p, const Reference::Gradients& want, double bound) {
        ops::attention_naive_forward(t.o, t.probabilities, t.q, t.k, t.v, mask_of(c));
        EXPECT_LT(relative_error(t.o, o), bound);
        EXPECT_LT(relative_error(t.probabilities, p), bound);
        ops::attention_naive_backward(t.dq, t.dk, t.dv, t.dout, t.q, t.k, t.v, t.probabilities);
        expect_gradients(t, want, bound);
    });
}

TEST(OpsAttention, BackwardEqualsCentralDifferences) {
    for (const Case& c : {Case{1, 5, 5, 2, 1, 4}, Case{1, 4, 6, 2, 2, 3, true, 1, 0},
                          Case{1, 5, 3, 1, 1, 4, true, 0, 2}, Case{1, 4, 4, 3, 1, 2, false}}) {
        SCOPED_TRACE(name(c, DType::fp32));
        Tensors t(c, DType::fp32, 7);
        ops::attention_forward(t.o, t.lse, t.q, t.k, t.v, mask_of(c));
        ops::attention_delta(t.delta, t.dout, t.o);
        ops::attention_backward(t.dq, t.dk, t.dv, t.dout, t.q, t.k, t.v, t.lse, t.delta,
                                mask_of(c));
        const Reference r(c);
        const Doubles q = to_double(t.q), k = to_double(t.k), v = to_double(t.v),
                      g = to_double(t.dout);
        const Reference::Gradients numerical = {
            numerical_gradient([&](const Doubles& x) { return dot(g, r.forward(x, k, v)); }, q),
            numerical_gradient([&](const Doubles& x) { return dot(g, r.forward(q, x, v)); }, k),
            numerical_gradient([&](const Doubles& x) { return dot(g, r.forward(q, k, x)); }, v),
            {}};
        expect_gradients(t, numerical, 1e-5);
    }
}

TEST(OpsAttention, RowsWithoutKeysAreZeroAndWithoutNan) {
    const Case c = {1, 150, 100, 2, 1, 16, true, 0, 70};
    Tensors t(c, DType::fp32, 11);
    ops::attention_forward(t.o, t.lse, t.q, t.k, t.v, mask_of(c));
    ops::attention_delta(t.delta, t.dout, t.o);
    ops::attention_backward(t.dq, t.dk, t.dv, t.dout, t.q, t.k, t.v, t.lse, t.delta, mask_of(c));
    const Doubles lse = to_double(t.lse), o = to_double(t.o), dq = to_double(t.dq);
    for (size_t i = 0; i < 70; ++i) {
        EXPECT_EQ(lse[i], -INFINITY);
        for (size_t x = i * 32; x < (i + 1) * 32; ++x) {
            EXPECT_EQ(o[x], 0);
            EXPECT_EQ(dq[x], 0);
        }
    }
}

// Whichever end a kernel starts from, a row's largest score grows again and again, so the earlier
// sums must be rescaled.
TEST(OpsAttention, GrowingScores) {
    for (const int64_t D : {64, 128})
        for (const bool growing : {false, true}) {
            const Case c = {1, 200, 700, 2, 1, D, false};
            SCOPED_TRACE(fmt::format("D {}, growing {}", D, growing));
            Tensors t(c, DType::bf16, 13);
            std::vector<bf16> k;
            for (const float x : t.k.to_host_float()) {
                const auto j = int64_t(k.size()) / D;
                k.push_back(bf16(x * float(growing ? j : c.Tk - j) / 40));
            }
            t.k = Tensor::from_host<bf16>(k, {c.B, c.Tk, c.K, D}, Memory::activation);
            Doubles lse;
            const Doubles o =
                Reference(c).forward(to_double(t.q), to_double(t.k), to_double(t.v), &lse);
            EXPECT_GT(*std::max_element(lse.begin(), lse.end()), 30);
            ops::attention_forward(t.o, t.lse, t.q, t.k, t.v, mask_of(c));
            EXPECT_LT(relative_error(t.o, o), 1e-2);
            EXPECT_LT(relative_error(t.lse, lse), 1e-5);
        }
}

// Scores in the thousands, and a maximum that comes late: the running maximum has to move without
// overflow.
TEST(OpsAttention, LargeScores) {
    const Case c = {1, 300, 600, 1, 1, 16, false};
    Tensors t(c, DType::fp32, 13);
    ops::scale(t.q, 30);
    std::vector<float> k = t.k.to_host<float>();
    for (size_t j = 0; j < 600; ++j)
        for (size_t d = 0; d < 16; ++d) k[j * 16 + d] *= float(j) / 60;
    t.k.copy_from_host(k.data());
    ops::attention_forward(t.o, t.lse, t.q, t.k, t.v, mask_of(c));
    ops::attention_naive_forward(t.dq, t.probabilities, t.q, t.k, t.v, mask_of(c));
    EXPECT_LT(relative_error(t.o, to_double(t.dq)),
              1e-3);  // e^x of a score of thousands has lost ten bits
}

// The bits depend neither on the number of the CPU's threads and passes, nor on the order in which
// a GPU's blocks add their parts.
TEST(OpsAttention, BackwardHasTheSameBitsInEveryRun) {
    const int threads = omp_get_max_threads();
    std::vector<std::pair<DType, Case>> some = {{DType::fp32, {1, 300, 300, 4, 2, 16}}};
#ifndef ULTRASCALE_SIMT  // many tiles, which take a minute without a GPU
    some.insert(some.end(),
                {{DType::bf16, {2, 600, 600, 4, 2, 64}}, {DType::bf16, {1, 600, 600, 4, 2, 128}}});
#endif
    for (const auto& [dtype, c] : some) {
        SCOPED_TRACE(name(c, dtype));
        std::vector<Doubles> results;
        for (int count : {1, 2, 7}) {
            omp_set_num_threads(count);
            Tensors t(c, dtype, 19);
            ops::attention_forward(t.o, t.lse, t.q, t.k, t.v, mask_of(c));
            ops::attention_delta(t.delta, t.dout, t.o);
            ops::attention_backward(t.dq, t.dk, t.dv, t.dout, t.q, t.k, t.v, t.lse, t.delta,
                                    mask_of(c));
            results.push_back(to_double(t.o));
            for (const Tensor& x : {t.dq, t.dk, t.dv})
                for (double value : to_double(x)) results.back().push_back(value);
        }
        omp_set_num_threads(threads);
        EXPECT_EQ(results[0], results[1]);
        EXPECT_EQ(results[0], results[2]);
    }
}

}  // namespace
}  // namespace ultrascale
