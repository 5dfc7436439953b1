#include "muon.h"

#include "core/error.h"
#include "core/ops_muon.h"

namespace ultrascale {

using ops::Transpose;

namespace {
constexpr int newton_schulz_steps = 5;
constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
constexpr float momentum = 0.95f;

template <class Keeps>
std::vector<AdamW::Item> items_that(std::vector<AdamW::Item> items, const Keeps& keep) {
    std::erase_if(items, [&](const AdamW::Item& item) { return !keep(*item.parameter); });
    return items;
}
}  // namespace

Muon::Muon(std::vector<Item> items, const OptimizerOptions& options)
    : AdamW(items_that(items, [](const Parameter& p) { return !updates(p); }), options),
      matrices_(items_that(items, updates)) {
    for (const Item& item : matrices_)
        check(item.value.numel() == ultrascale::numel(item.parameter->shape),
              "muon: a piece of a matrix");
}

bool Muon::updates(const Parameter& p) {
    return p.shape.size() == 2 && p.name.find(".layers.") != p.name.npos;
}

int64_t Muon::flops(const Shape& matrix) {
    const auto [m, n] = std::minmax(matrix[0], matrix[1]);
    return newton_schulz_steps * (4 * m * m * n + 2 * m * m * m);
}

int64_t Muon::numel(const ParameterList& parameters) {
    int64_t sum = 0;
    for (const auto& p : parameters) sum += updates(*p) ? p->local_numel() : 0;
    return sum;
}

Tensor orthogonalized(const Tensor& matrix, const Tensor& squared_norm, DType dtype) {
    const bool wide = matrix.rows() <= matrix.cols();
    const int64_t m = std::min(matrix.rows(), matrix.cols());
    const auto new_tensor = [&](const Shape& shape) {
        return Tensor::empty(shape, dtype, Memory::workspace);
    };
    Tensor x = new_tensor(matrix.shape()), next = new_tensor(matrix.shape());
    const Tensor gram = new_tensor({m, m}), squared = new_tensor({m, m});
    ops::divide_by_norm(x, matrix, squared_norm);
    for (int step = 0; step < newton_schulz_steps; ++step) {
        // The Gram matrix of the shorter side, X X^T or X^T X; its polynomial multiplies that side.
        ops::matmul(gram, x, wide ? Transpose::no : Transpose::yes, x,
                    wide ? Transpose::yes : Transpose::no);
        ops::matmul(squared, gram, Transpose::no, gram, Transpose::no);
        ops::polynomial(gram, squared, a, b, c);
        if (wide)
            ops::matmul(next, gram, Transpose::no, x, Transpose::no);
        else
            ops::matmul(next, x, Transpose::no, gram, Transpose::no);
        std::swap(x, next);
    }
    return x;
}

void Muon::step(double lr, const Tensor& squared_norm) {
    AdamW::step(lr, squared_norm);
    if (momentum_.empty()) momentum_ = zeros_for(matrices_), master_ = masters_of(matrices_);
    for (size_t i = 0; i < matrices_.size(); ++i) {
        const auto& [parameter, begin, value, grad] = matrices_[i];
        const Shape& shape = parameter->shape;
        const Tensor direction = Tensor::empty(shape, DType::fp32, Memory::workspace);
        ops::nesterov(direction, momentum_[i], grad ? grad : parameter->grad, momentum,
                      squared_norm, float(options_.clip));
        const Tensor size = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        ops::accumulate_sum_squares(size, {direction});
        const double decay = parameter->decays ? options_.weight_decay : 0,
                     scale = 0.2 * std::sqrt(double(std::max(shape[0], shape[1])));
        ops::move_weights(value.view(shape), master_[i].view(shape),
                          orthogonalized(direction, size, value.dtype()), float(1 - lr * decay),
                          float(lr * scale));
    }
}

std::vector<TensorPart> Muon::states() {
    if (momentum_.empty()) momentum_ = zeros_for(matrices_), master_ = masters_of(matrices_);
    std::vector<TensorPart> all = AdamW::states();
    for (size_t i = 0; i < matrices_.size(); ++i) {
        const Item& item = matrices_[i];
        all.emplace_back(*item.parameter, momentum_[i], 0, "momentum.");
        if (item.value.dtype() != DType::fp32)
            all.emplace_back(*item.parameter, master_[i], 0, "master.");
    }
    return all;
}

}  // namespace ultrascale
