// --demo swiglu: shows what SwiGLU's outliers do to down_proj's product in e4m3
// (7_smooth_swiglu.h). In 4 of 512 features the rows of gate and up are the same, and grow longer
// and longer; in the others they are independent. The error is that of the ordinary features' part
// of y.
#pragma once

#include <cmath>

#include "../7_smooth_swiglu.h"
#include "core/random.h"
#include "lab/report/report.h"

namespace ultrascale::mixed_precision {

namespace swiglu_demo {

inline constexpr int64_t tokens = 256, hidden = 128, features = 512, outliers = 4;

inline std::vector<float> normal(const char* name, int64_t n) {
    const Random random(1, name);
    std::vector<float> numbers(size_t(n), 0.0f);
    for (int64_t i = 0; i < n; ++i) numbers[size_t(i)] = random.normal(uint64_t(i));
    return numbers;
}
inline Tensor on_device(const std::vector<float>& numbers, Shape shape) {
    return Tensor::from_host<float>(numbers, std::move(shape), Memory::workspace);
}
inline Tensor room(Shape shape) {
    return Tensor::empty(std::move(shape), DType::fp32, Memory::workspace);
}

// silu(x gate^T) * (x up^T): (tokens, features).
inline Tensor activations(double alignment) {
    std::vector<float> rows = normal("rows", 2 * features * hidden);  // gate, then up
    for (float& w : rows) w /= std::sqrt(float(hidden));
    for (int64_t i = 0; i < outliers * hidden; ++i) {
        float& gate = rows[size_t(i)];
        gate *= float(alignment);
        rows[size_t(features * hidden + i)] = gate;
    }
    const Tensor x = on_device(normal("x", tokens * hidden), {tokens, hidden}),
                 gate_up = room({tokens, 2 * features}), a = room({tokens, features});
    ops::matmul(gate_up, x, ops::Transpose::no, on_device(rows, {2 * features, hidden}),
                ops::Transpose::yes);
    ops::swiglu_forward(a, gate_up);
    return a;
}

// Returns a weight that reads only ordinary features, so that y shows what is left of them.
inline Tensor weight() {
    std::vector<float> numbers = normal("down", hidden * features);
    for (int64_t r = 0; r < hidden; ++r)
        for (int64_t f = 0; f < outliers; ++f) numbers[size_t(r * features + f)] = 0;
    return on_device(numbers, {hidden, features});
}

inline double error(const Tensor& got, const Tensor& exact) {
    const std::vector<float> a = got.to_host<float>(), b = exact.to_host<float>();
    double off = 0, all = 0;
    for (size_t i = 0; i < a.size(); ++i)
        off += std::pow(double(a[i]) - double(b[i]), 2), all += std::pow(double(b[i]), 2);
    return std::sqrt(off / all);
}

inline Tensor product_in_fp8(const Tensor& x, const Tensor& w, ops::ScaleGroup x_group,
                             ops::ScaleGroup w_group) {
    const Tensor y = room({tokens, hidden});
    const auto rounded = [](const Tensor& t, ops::ScaleGroup group) {
        const ops::Quantised q =
            ops::empty_quantised(t.rows(), t.cols(), DType::e4m3, group, Memory::workspace);
        ops::quantise(q, {}, t, {.group = group});
        return q;
    };
    ops::matmul_fp8(y, rounded(x, x_group), rounded(w, w_group), {x_group, w_group});
    return y;
}

}  // namespace swiglu_demo

// Returns false if smoothing does not improve the product although there are outliers.
inline bool demo_swiglu() {
    using namespace swiglu_demo;
    using ops::ScaleGroup;
    print(
        fmt::format("SwiGLU of {} tokens, {} features; in {} of them gate and up are the same row, "
                    "so many times as long",
                    tokens, features, outliers));
    print("relative L2 error of what down_proj makes of the other features, in e4m3");
    print("  length   largest/median   a scale a tensor   a row    1 x 128   smoothed");
    const Tensor w = weight();
    bool ok = true;
    for (const double length : {1.0, 8.0, 64.0, 512.0}) {
        const Tensor a = activations(length), exact = room({tokens, hidden});
        ops::matmul(exact, a, ops::Transpose::no, w, ops::Transpose::yes);
        const Tensor scales = room({features}), inverses = room({features}),
                     smooth = room(a.shape()), scaled = room(w.shape());
        ops::column_scales(scales, inverses, a);
        ops::scale_columns(smooth, a, inverses), ops::scale_columns(scaled, w, scales);
        std::vector<float> sizes = a.to_host<float>();
        for (float& x : sizes) x = std::abs(x);
        std::nth_element(sizes.begin(), sizes.begin() + std::ptrdiff_t(sizes.size() / 2),
                         sizes.end());
        const double median = double(sizes[sizes.size() / 2]),
                     largest = double(*std::ranges::max_element(sizes));
        const double tensor =
                         error(product_in_fp8(a, w, ScaleGroup::tensor, ScaleGroup::tensor), exact),
                     row = error(product_in_fp8(a, w, ScaleGroup::row, ScaleGroup::row), exact),
                     tile = error(product_in_fp8(a, w, ScaleGroup::tile, ScaleGroup::block), exact),
                     smoothed = error(
                         product_in_fp8(smooth, scaled, ScaleGroup::tensor, ScaleGroup::tensor),
                         exact);
        print(fmt::format("  {:>6g}   {:>14.2g}   {:>16.4f}   {:.4f}   {:.4f}    {:.4f}", length,
                          largest / median, tensor, row, tile, smoothed));
        ok = ok && (length < 64 || smoothed < tensor / 2);
    }
    print(ok ? "smoothed, each feature keeps its bits, whatever the others are: ok"
             : "WRONG: smoothing should keep the ordinary features");
    return ok;
}

}  // namespace ultrascale::mixed_precision
