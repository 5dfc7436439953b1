// 08_mixed_precision's linears in mxfp8 and nvfp4: their three products are those of matrices that
// are rounded here, block by block, and multiplied in float64; and each mistake changes them.
#include <gtest/gtest.h>

#include "08_mixed_precision/5_mx_blocks.h"
#include "08_mixed_precision/5_nvfp4.h"
#include "tests/test_util.h"

namespace ultrascale {
using namespace ultrascale::mixed_precision;
namespace {

using enum ops::BlockFormat;
using enum ops::BlockShape;

constexpr int64_t N = 64, in = 80, out = 48, first_token = 7 * N;  // the batch is sample 7
const char* const name = "model.layers.0.mlp.gate_proj.weight";

// Normal numbers; those of the first row are so many times as large, and with `no_column` those of
// the first column are 0.
Tensor numbers(Shape shape, uint64_t seed, double times = 1, bool no_column = false) {
    Doubles values = to_double(random_tensor(shape, DType::bf16, seed));
    const auto cols = size_t(shape[1]);
    for (size_t i = 0; i < values.size(); ++i)
        values[i] *= no_column && i % cols == 0 ? 0 : i < cols ? times : 1;
    return tensor_of(values, shape, DType::bf16);
}

struct Setting {
    ParameterList parameters;
    std::vector<Parameter*> rows{parameters.add({.name = name, .shape = {out, in}})};
    // Token 0 of x and feature 0 of W spoil the blocks in which they are; dy does not see them.
    Tensor x = numbers({N, in}, 1, 65536), dy = numbers({N, out}, 2, 0, true),
           W = numbers({out, in}, 3, 65536), residual = numbers({N, out}, 4);
    Setting() {
        parameters.allocate_values(DType::bf16);
        parameters.allocate_grads(DType::fp32);
        ops::copy(parameters.flat_values(), W.view({out * in}));
    }
};
struct Results {
    Doubles y, dx, dW;
};
// Two micro-batches of the same tokens, so that dW is twice as large.
Results run(Setting& s, Linear& linear) {
    s.parameters.begin_gradients(2);
    Results results;
    for (int i = 0; i < 2; ++i) {
        Context context;
        context.batch.tokens = Tensor::zeros({1, N}, DType::int32, Memory::workspace);
        context.batch.first_sample = 7;
        Saved saved;
        results.y = to_double(linear.forward(s.x, saved, context, s.residual));
        results.dx = to_double(linear.backward_input(s.dy, saved, context));
        linear.backward_weight(saved, context);
    }
    results.dW = to_double(s.parameters.flat_grads());
    return results;
}

Doubles rounded(const Tensor& x, const ops::BlockRounding& how) {
    const bool nvfp4 = how.format == ops::BlockFormat::nvfp4;
    const Tensor y = Tensor::empty(x.shape(), DType::bf16, Memory::workspace),
                 scale = nvfp4 ? Tensor::empty({1}, DType::fp32, Memory::workspace) : Tensor();
    ops::round_blocks(y, x, how, scale);
    Doubles values = to_double(y);
    for (double& v : values) v *= nvfp4 ? double(scale.to_host<float>()[0]) : 1;
    return values;
}
// The sum of a[i] b[j] over k, where a(i, k) = a[i ai + k ak], and so for b; times `times`.
Doubles product(const Doubles& a, int64_t I, int64_t ai, int64_t ak, const Doubles& b, int64_t J,
                int64_t bj, int64_t bk, int64_t K, double times = 1) {
    Doubles d;
    for (int64_t i = 0; i < I; ++i)
        for (int64_t j = 0; j < J; ++j) {
            double sum = 0;
            for (int64_t k = 0; k < K; ++k)
                sum += a[size_t(i * ai + k * ak)] * b[size_t(j * bj + k * bk)];
            d.push_back(times * sum);
        }
    return d;
}
// How the six operands are rounded: for y, dx, dW.
struct Operands {
    ops::BlockRounding x, W, dy, W_down, dy_down, x_down;
};
Results expected(const Setting& s, const Operands& o) {
    Results r;
    r.y = product(rounded(s.x, o.x), N, in, 1, rounded(s.W, o.W), out, in, 1, in);
    const Doubles residual = to_double(s.residual);
    for (size_t i = 0; i < r.y.size(); ++i) r.y[i] += residual[i];
    r.dx = product(rounded(s.dy, o.dy), N, out, 1, rounded(s.W, o.W_down), in, 1, in, out);
    r.dW = product(rounded(s.dy, o.dy_down), out, 1, out, rounded(s.x, o.x_down), in, 1, in, N, 2);
    return r;
}
// What y says of all tokens but the first.
Doubles others(const Doubles& y) { return {y.begin() + out, y.end()}; }
void expect_near(const Results& got, const Results& want) {
    EXPECT_LT(relative_error(others(got.y), others(want.y)), 3e-3);  // bf16 rounds to 2^-9
    EXPECT_LT(relative_error(got.dx, want.dx), 3e-3);
    EXPECT_LT(relative_error(got.dW, want.dW), 1e-6);  // fp32
}

TEST(PrecisionBlocks, MxLinearMultipliesBlocksAlongTheSum) {
    for (const bool e5m2 : {false, true})
        for (const bool up : {true, false}) {
            Setting s;
            MxLinear linear(s.rows, e5m2 ? DType::e5m2 : DType::e4m3, up);
            const auto dy = e5m2 ? mx_e5m2 : mx_e4m3;
            const ops::BlockRounding along{.format = mx_e4m3, .round_up = up},
                down{.format = mx_e4m3, .shape = column, .round_up = up};
            Operands o{along,
                       along,
                       {.format = dy, .round_up = up},
                       down,
                       {.format = dy, .shape = column, .round_up = up},
                       down};
            const Results got = run(s, linear);
            expect_near(got, expected(s, o));
            o.x = down, o.W_down = o.x_down = along;  // blocks across the sum
            const Results across = expected(s, o);
            EXPECT_GT(relative_error(others(got.y), others(across.y)), 1e-2);
            EXPECT_GT(relative_error(got.dx, across.dx), 1e-2);
            EXPECT_GT(relative_error(got.dW, across.dW), 1e-2);
        }
}

TEST(PrecisionBlocks, Nvfp4LinearWithEachOfItsTricks) {
    constexpr uint64_t seed = 5;
    for (int without = 0; without < 8; ++without) {
        const Nvfp4Tricks tricks{
            .hadamard = !(without & 1), .stochastic = !(without & 2), .square = !(without & 4)};
        Setting s;
        Nvfp4Linear linear(s.rows, tricks, seed);
        const ops::BlockRounding along{.format = nvfp4}, down{.format = nvfp4, .shape = column},
            whole{.format = nvfp4, .shape = square};
        Operands o{along, tricks.square ? whole : along, along, tricks.square ? whole : down, down,
                   down};
        if (tricks.hadamard)
            o.dy_down.hadamard = o.x_down.hadamard = Random(seed, "hadamard").bits(0) & 0xffff;
        if (tricks.stochastic) {
            o.dy.random = Random(seed, std::string("dX.") + name);
            o.dy_down.random = Random(seed, std::string("dW.") + name);
            o.dy.first = o.dy_down.first = uint64_t(first_token * out);
        }
        const Results got = run(s, linear);
        expect_near(got, expected(s, o));
        if (without != 0) continue;
        // Transformed once, dW is noise; with another sample's random numbers all differs a little.
        Operands wrong = o;
        wrong.x_down.hadamard.reset();
        EXPECT_GT(relative_error(got.dW, expected(s, wrong).dW), 0.9);
        wrong = o, wrong.dy.first = wrong.dy_down.first = 0;
        const Results other = expected(s, wrong);
        EXPECT_GT(relative_error(got.dx, other.dx), 1e-2);
        EXPECT_GT(relative_error(got.dW, other.dW), 1e-2);
    }
}

}  // namespace
}  // namespace ultrascale
