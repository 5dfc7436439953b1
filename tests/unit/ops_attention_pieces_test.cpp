// When every multiprocessor has had its share of tiles, some are left over. Hopper's kernels divide
// each of these among several blocks: by queries in forward, by keys in backward.
#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "attention_reference.h"
#include "core/device.h"

#ifndef ULTRASCALE_SIMT  // the executor has no Hopper kernels
namespace ultrascale {
namespace {

using namespace attention_test;

// Returns dq, dk and dv. If dk and dv are added to, returns what was added.
std::array<Doubles, 3> gradients(const Case& c, const Tensors& t, DType dtype, bool adds) {
    const auto begin = [&](uint64_t seed) {
        return adds ? random_tensor(t.k.shape(), dtype, seed) : poisoned(t.k.shape(), dtype);
    };
    const Tensor dk = begin(45), dv = begin(46);
    std::array<Doubles, 3> before = {to_double(t.dq), to_double(dk), to_double(dv)};
    ops::attention_backward(t.dq, dk, dv, t.dout, t.q, t.k, t.v, t.lse, t.delta, mask_of(c),
                            {.dkv = adds});
    std::array<Doubles, 3> after = {to_double(t.dq), to_double(dk), to_double(dv)};
    if (adds)
        for (size_t i = 1; i < 3; ++i)
            for (size_t j = 0; j < after[i].size(); ++j) after[i][j] -= before[i][j];
    return after;
}

// There are 140 equal tiles, eight more than an H100 has multiprocessors. The kernels for other
// GPUs do not divide tiles.
TEST(OpsAttentionPieces, OfKeysThatAreLeftOver) {
    if (!device_is_gpu()) GTEST_SKIP() << "for GPUs";
    for (const Case& c :
         {Case{1, 2000, 1270, 14, 14, 128, false}, Case{2, 2100, 1280, 14, 7, 64, false}}) {
        const Tensors t(c, DType::bf16, 41, false);
        ops::attention_forward(t.o, t.lse, t.q, t.k, t.v, mask_of(c));
        ops::attention_delta(t.delta, t.dout, t.o);
        for (const auto& [dtype, adds] :
             {std::pair{DType::bf16, false}, {DType::fp32, false}, {DType::fp32, true}}) {
            SCOPED_TRACE(fmt::format("D {} {} adds {}", c.D, dtype_name(dtype), adds));
            const auto got = gradients(c, t, dtype, adds);
            const NoHopper no_hopper;
            const auto want = gradients(c, t, dtype, adds);
            for (size_t i = 0; i < 3; ++i) EXPECT_LT(relative_error(got[i], want[i]), 1e-2);
        }
    }
}

TEST(OpsAttentionPieces, OfQueriesThatAreLeftOver) {
    if (!device_is_gpu()) GTEST_SKIP() << "for GPUs";
    for (const Case& c :
         {Case{1, 1270, 8000, 14, 14, 128, false}, Case{2, 900, 6000, 14, 7, 64, false}}) {
        SCOPED_TRACE(fmt::format("D {}", c.D));
        const Tensors t(c, DType::bf16, 47, false);
        const auto forward = [&] {
            const Tensor o = poisoned(t.o.shape(), DType::bf16),
                         lse = poisoned(t.lse.shape(), DType::fp32);
            ops::attention_forward(o, lse, t.q, t.k, t.v, mask_of(c));
            return std::pair(to_double(o), to_double(lse));
        };
        const auto got = forward();
        EXPECT_EQ(forward(), got);  // has the same bits
        const NoHopper no_hopper;
        const auto want = forward();
        EXPECT_LT(relative_error(got.first, want.first), 5e-3);
        EXPECT_LT(relative_error(got.second, want.second), 1e-4);
    }
}

}  // namespace
}  // namespace ultrascale
#endif
