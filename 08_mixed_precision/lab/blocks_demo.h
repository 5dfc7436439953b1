// --demo blocks: shows what a product loses in each format, with one scale a tensor and with blocks
// (5_mx_blocks.h, 5_nvfp4.h), and what nvfp4's tricks change: for outliers the Hadamard transform,
// for the mean of many gradients stochastic rounding.
#pragma once

#include <cmath>

#include "../5_tiles.h"
#include "../kernels/ops_blocks.h"
#include "../kernels/ops_quantised.h"
#include "core/ops.h"
#include "core/random.h"
#include "lab/report/report.h"

namespace ultrascale::mixed_precision {

namespace blocks_demo {

inline constexpr int64_t tokens = 512, in = 512, out = 128;

// Normal numbers (tokens, n); in one of 64 tokens feature 7 is `times` as large.
inline std::vector<float> normal(const char* name, int64_t n, float times = 1) {
    const Random random(1, name);
    std::vector<float> x;
    for (int64_t i = 0; i < tokens * n; ++i)
        x.push_back(random.normal(uint64_t(i)) * (i % (64 * n) == 7 ? times : 1));
    return x;
}
inline Tensor on_device(const std::vector<float>& x, int64_t n) {
    return Tensor::from_host<float>(x, {int64_t(x.size()) / n, n}, Memory::workspace);
}
inline Tensor in_fp8(const Tensor& x, ops::ScaleGroup group) {
    const ops::Quantised q =
        ops::empty_quantised(x.rows(), x.cols(), DType::e4m3, group, Memory::workspace);
    const Tensor back = Tensor::empty(x.shape(), DType::fp32, Memory::workspace);
    ops::quantise(q, {}, x, {.group = group});
    ops::dequantise(back, q, group);
    return back;
}
inline Tensor in_blocks(const Tensor& x, const ops::BlockRounding& how) {
    const bool nvfp4 = how.format == ops::BlockFormat::nvfp4;
    const Tensor y = Tensor::empty(x.shape(), DType::bf16, Memory::workspace),
                 scale = nvfp4 ? Tensor::empty({1}, DType::fp32, Memory::workspace) : Tensor(),
                 back = Tensor::empty(x.shape(), DType::fp32, Memory::workspace);
    ops::round_blocks(y, x, how, scale);
    ops::copy(back, y);
    if (nvfp4) ops::scale(back, scale.to_host<float>()[0]);
    return back;
}
inline double relative_error(const std::vector<double>& got, const std::vector<double>& exact) {
    double off = 0, all = 0;
    for (size_t i = 0; i < got.size(); ++i)
        off += std::pow(got[i] - exact[i], 2), all += std::pow(exact[i], 2);
    return std::sqrt(off / all);
}
// a b^T, or with `down` a^T b, on the host's doubles.
inline std::vector<double> product(const Tensor& a, const Tensor& b, bool down) {
    const Tensor d = Tensor::empty({down ? a.cols() : a.rows(), down ? b.cols() : b.rows()},
                                   DType::fp32, Memory::workspace);
    const auto no = ops::Transpose::no, yes = ops::Transpose::yes;
    ops::matmul(d, a, down ? yes : no, b, down ? no : yes);
    const std::vector<float> values = d.to_host<float>();
    return {values.begin(), values.end()};
}

// The error of a product of two matrices that are both rounded by `round`.
template <class Round>
double error(const Tensor& a, const Tensor& b, bool down, const Round& round) {
    return relative_error(product(round(a), round(b), down), product(a, b, down));
}

// The error of the mean of 64 roundings of x.
inline double error_of_mean(const std::vector<float>& x, bool stochastic) {
    std::vector<double> mean(x.size(), 0.0);
    ops::BlockRounding how{.format = ops::BlockFormat::nvfp4};
    for (int seed = 0; seed < 64; ++seed) {
        if (stochastic) how.random = Random(uint64_t(seed), "demo");
        const std::vector<float> y = in_blocks(on_device(x, in), how).to_host<float>();
        for (size_t i = 0; i < y.size(); ++i) mean[i] += double(y[i]) / 64;
    }
    return relative_error(mean, {x.begin(), x.end()});
}

}  // namespace blocks_demo

// Returns false if the numbers do not show what the lines say.
inline bool demo_blocks() {
    using namespace blocks_demo;
    using enum ops::BlockFormat;
    print("y = x W^T of normal numbers; in one of 64 tokens feature 7 is so many times as large");
    print("relative L2 error of what the other features contribute, by the format of x and W");
    print("  times     e4m3, a scale    1 x 128   mxfp8 as OCP's   mxfp8    nvfp4");
    std::vector<float> w = normal("W", in);
    for (size_t i = 7; i < w.size(); i += size_t(in)) w[i] = 0;  // y does not see feature 7
    const Tensor W = on_device(w, in);
    bool ok = true;
    for (const float times : {1.0f, 100.0f, 1e4f, 1e6f}) {
        const Tensor x = on_device(normal("x", in, times), in);
        const auto fp8 = [&](ops::ScaleGroup group) {
            return error(x, W, false, [=](const Tensor& t) { return in_fp8(t, group); });
        };
        const auto blocks = [&](const ops::BlockRounding& how) {
            return error(x, W, false, [=](const Tensor& t) { return in_blocks(t, how); });
        };
        const double tensor = fp8(ops::ScaleGroup::tensor), tile = fp8(ops::ScaleGroup::tile),
                     ocp = blocks({.format = mx_e4m3, .round_up = false}),
                     up = blocks({.format = mx_e4m3}), four = blocks({.format = nvfp4});
        print(fmt::format("  {:>6g}  {:>14.4f}  {:>11.4f}  {:>14.4f}  {:>7.4f}  {:>7.4f}",
                          double(times), tensor, tile, ocp, up, four));
        ok = ok && up < ocp && up < four && (times < 1e6f || up < tensor / 4);
    }

    print("\ndW = dy^T x in nvfp4, relative L2 error without and with the Hadamard transform");
    for (const auto& [what, times, shift] :
         {std::tuple{"normal numbers", 1.0f, 0.0f},
          {"outliers, 64 times as large", 64.0f, 0.0f},
          {"neighbours that are alike: 4 + a normal number", 1.0f, 4.0f}}) {
        std::vector<float> x = normal("x", in), dy = normal("dy", out);
        for (std::vector<float>* all : {&x, &dy})
            for (size_t i = 0; i < all->size(); ++i)
                (*all)[i] = (*all)[i] * (i % 31 == 7 ? times : 1) + shift;
        const auto off = [&](std::optional<uint32_t> signs) {
            const ops::BlockRounding how{
                .format = nvfp4, .shape = ops::BlockShape::column, .hadamard = signs};
            return error(on_device(dy, out), on_device(x, in), true,
                         [=](const Tensor& t) { return in_blocks(t, how); });
        };
        const double plain = off({}), turned = off(0xB4D1);
        print(fmt::format("  {:<48} {:>7.4f}  {:>7.4f}", what, plain, turned));
        ok = ok && (shift == 0 || turned < plain / 1.5);
    }

    const std::vector<float> x = normal("dy", in);
    const double nearest = error_of_mean(x, false), stochastic = error_of_mean(x, true);
    print(
        fmt::format("\nthe mean of 64 roundings to nvfp4, relative L2 error: to nearest {:.4f}, "
                    "stochastically {:.4f}",
                    nearest, stochastic));
    ok = ok && stochastic < nearest / 2;
    print(ok ? "blocks confine outliers, rounded up nothing saturates, and rounded stochastically "
               "errors cancel: ok"
             : "WRONG: blocks should confine outliers, and errors cancel on average");
    return ok;
}

}  // namespace ultrascale::mixed_precision
