// The norm of each head of q and k equals RMSNorm of their rows, taken out of qkv one by one.
#include <gtest/gtest.h>

#include "core/ops.h"
#include "core/ops_gpt.h"
#include "tests/test_util.h"

namespace ultrascale {
namespace {

struct Sizes {
    int64_t N, H, K, D;
};
const std::vector<Sizes> sizes = {{1, 1, 1, 2},   {7, 4, 2, 16},  {70, 3, 1, 64},
                                  {5, 8, 8, 128}, {9, 2, 1, 256}, {3, 1, 1, 300}};

// Returns columns `first` .. of heads `begin` .. end - 1, as rows of D.
Doubles heads(const Doubles& qkv, const Sizes& s, int64_t begin, int64_t end) {
    const int64_t all = s.H + 2 * s.K;
    Doubles rows;
    for (int64_t n = 0; n < s.N; ++n)
        rows.insert(rows.end(), qkv.begin() + (n * all + begin) * s.D,
                    qkv.begin() + (n * all + end) * s.D);
    return rows;
}

TEST(OpsNormHeads, EqualsRmsNormOfEachHead) {
    constexpr float eps = 1e-5f;
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
        for (const Sizes& s : sizes) {
            SCOPED_TRACE(fmt::format("{} H {} K {} D {}", dtype_name(dtype), s.H, s.K, s.D));
            const int64_t all = s.H + 2 * s.K, normed = s.H + s.K;
            const Shape shape = {s.N, all * s.D};
            const Tensor qkv = random_tensor(shape, dtype, 31), d = random_tensor(shape, dtype, 32),
                         out = poisoned(shape, dtype), rstd = poisoned({s.N, normed}, DType::fp32);
            const Doubles x = to_double(qkv), dy = to_double(d);
            const Tensor weights[] = {random_tensor({s.D}, dtype, 33),
                                      random_tensor({s.D}, dtype, 34)};
            Tensor gradients[] = {random_tensor({s.D}, dtype, 35), random_tensor({s.D}, dtype, 36)};
            const Tensor want_gradients[] = {tensor_of(to_double(gradients[0]), {s.D}, dtype),
                                             tensor_of(to_double(gradients[1]), {s.D}, dtype)};
            ops::norm_heads_forward(out, rstd, qkv, weights[0], weights[1], eps);
            ops::norm_heads_backward(d, gradients[0], gradients[1], qkv, rstd, weights[0],
                                     weights[1]);
            const Doubles y = to_double(out), dx = to_double(d);
            for (int part = 0; part < 2; ++part) {
                const int64_t begin = part == 0 ? 0 : s.H, end = part == 0 ? s.H : normed,
                              rows = s.N * (end - begin);
                const Tensor in = tensor_of(heads(x, s, begin, end), {rows, s.D}, dtype),
                             dout = tensor_of(heads(dy, s, begin, end), {rows, s.D}, dtype),
                             want = poisoned({rows, s.D}, dtype), r = poisoned({rows}, DType::fp32),
                             want_dx = poisoned({rows, s.D}, dtype);
                ops::rmsnorm_forward(want, r, in, weights[part], eps);
                ops::rmsnorm_backward(want_dx, want_gradients[part], dout, in, r, weights[part]);
                EXPECT_LT(relative_error(heads(y, s, begin, end), to_double(want)),
                          tolerance(dtype));
                EXPECT_LT(relative_error(heads(dx, s, begin, end), to_double(want_dx)),
                          tolerance(dtype));
                EXPECT_LT(relative_error(gradients[part], to_double(want_gradients[part])),
                          tolerance(dtype));
            }
            EXPECT_EQ(heads(y, s, normed, all), heads(x, s, normed, all));    // v
            EXPECT_EQ(heads(dx, s, normed, all), heads(dy, s, normed, all));  // and its gradient

            const Tensor both[] = {Tensor::zeros({s.D}, dtype, Memory::gradient),
                                   Tensor::zeros({s.D}, dtype, Memory::gradient)},
                         first[] = {poisoned({s.D}, dtype), poisoned({s.D}, dtype)};
            for (const auto& [to, add] : {std::pair(both, true), {first, false}})  // or overwritten
                ops::norm_heads_backward(tensor_of(dy, shape, dtype), to[0], to[1], qkv, rstd,
                                         weights[0], weights[1], add);
            for (int part = 0; part < 2; ++part)
                EXPECT_EQ(to_double(first[part]), to_double(both[part]));
        }
}

// A rank without tokens: the gradients of the weights are 0, or stay as they are.
TEST(OpsNormHeads, WithoutRowsAsRmsNormAndLayerNorm) {
    const auto rows = [](int64_t columns) {
        return Tensor::empty({0, columns}, DType::fp32, Memory::activation);
    };
    const Tensor w = random_tensor({16}, DType::fp32, 41);
    for (const bool add : {false, true}) {
        const auto expect = [&](const auto& backward) {
            const Tensor a = random_tensor({16}, DType::fp32, 42),
                         b = random_tensor({16}, DType::fp32, 43);
            const Doubles zeros(16), want_a = add ? to_double(a) : zeros,
                                     want_b = add ? to_double(b) : zeros;
            backward(a, b);
            EXPECT_EQ(to_double(a), want_a);
            EXPECT_EQ(to_double(b), want_b);
        };
        expect([&](const Tensor& a, const Tensor& b) {
            ops::norm_heads_backward(rows(64), a, b, rows(64), rows(3), w, w, add);
        });
        expect([&](const Tensor& a, const Tensor& b) {
            ops::layernorm_backward(rows(16), a, b, rows(16), rows(16), rows(2), w, {}, add);
        });
        expect([&](const Tensor& a, const Tensor& b) {
            for (const Tensor& dw : {a, b})
                ops::rmsnorm_backward(rows(16), dw, rows(16), rows(16), rows(1), w, {}, add);
        });
    }
}

TEST(OpsNormHeads, MistakesAreFound) {
    const Tensor qkv = random_tensor({3, 4 * 8}, DType::fp32, 37),
                 w = random_tensor({8}, DType::fp32, 38), out = poisoned({3, 4 * 8}, DType::fp32);
    ops::norm_heads_forward(out, poisoned({3, 3}, DType::fp32), qkv, w, w, 1e-5f);
    EXPECT_THROW(ops::norm_heads_forward(out, poisoned({3, 4}, DType::fp32), qkv, w, w, 1e-5f),
                 std::logic_error);
    EXPECT_THROW(ops::norm_heads_forward(out, poisoned({3, 2}, DType::fp32), qkv, w, w, 1e-5f),
                 std::logic_error);
}

}  // namespace
}  // namespace ultrascale
