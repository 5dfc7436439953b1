// Histograms of gradients by powers of two, and what fp16 does to them: with --svg gradients.svg.
//
//     2^-40      2^-30      2^-24    2^-14            2^0                     2^16
//       .  . . : : : : | : : : : | : : . .              .                       |
//      lost in fp16    | fewer bits    | all 10 bits of mantissa                infinite
//
// Multiplied by S = 2^16, all bars move 16 places to the right. That is all that loss scaling does.
//
// The gradients counted are those of the linears' outputs (dy), in all layers, in the first step.
// Micikevicius et al. 2018 (arXiv 1710.03740), figure 3.
#pragma once

#include <memory>

#include "../kernels/ops_ranges.h"
#include "lab/pictures/charts.h"
#include "lab/report/report.h"
#include "model/llama.h"

namespace ultrascale::mixed_precision {

class GradientHistogram {
public:
    explicit GradientHistogram(bool wanted) {
        if (wanted) counts_ = Tensor::zeros({ops::binades}, DType::int32, Memory::workspace);
    }
    explicit operator bool() const { return bool(counts_); }

    void add(const Tensor& dy) {
        if (counts_ && counting) ops::count_binades(counts_, dy);
    }
    // Wraps the model's linears, whatever they are.
    void add_to(ModuleFactories& factories);
    bool counting = true;

    // Counts the numbers below 2^exponent, zeros included.
    int64_t below(int exponent) const {
        const std::vector<int32_t> counts = counts_.to_host<int32_t>();
        int64_t sum = counts[0];
        for (int e = -127; e < exponent; ++e) sum += counts[size_t(1 + e + 127)];
        return sum;
    }
    int64_t all() const {
        int64_t sum = 0;
        for (int32_t n : counts_.to_host<int32_t>()) sum += n;
        return sum;
    }
    std::vector<int32_t> counts() const { return counts_.to_host<int32_t>(); }

private:
    Tensor counts_;
};

// Counts the gradient that arrives, and passes it on.
class CountingLinear : public Linear {
public:
    CountingLinear(std::unique_ptr<Linear> inner, GradientHistogram& histogram)
        : Linear(inner->parameters()), inner_(std::move(inner)), histogram_(histogram) {}
    Tensor forward(const Tensor& x, Saved& saved, Context& context,
                   const Tensor& residual) override {
        return inner_->forward(x, saved, context, residual);
    }
    Tensor backward_input(const Tensor& dy, Saved& saved, Context& context) override {
        histogram_.add(dy);
        return inner_->backward_input(dy, saved, context);
    }
    void backward_weight(Saved& saved, Context& context) override {
        inner_->backward_weight(saved, context);
    }

private:
    std::unique_ptr<Linear> inner_;
    GradientHistogram& histogram_;
};

inline void GradientHistogram::add_to(ModuleFactories& factories) {
    if (!counts_) return;
    factories.linear = [this, linear = factories.linear](
                           ParameterList& list, const ModuleFactories& factories,
                           const ModulePath& path, LinearRole role,
                           const ModuleFactories::LinearShape& shape) {
        return std::make_unique<CountingLinear>(linear(list, factories, path, role, shape), *this);
    };
}

// `scale` is the loss's factor; the picture divides by it again.
inline void draw_gradients(const std::string& directory, const GradientHistogram& histogram,
                           double scale) {
    if (!draws(directory) || !histogram) return;
    constexpr int lowest = -52, highest = 20;  // powers of two
    const std::vector<int32_t> counts = histogram.counts();
    const int shift = int(std::lround(std::log2(scale)));
    const auto count_at = [&](int e) {
        const int index = 1 + 127 + e + shift;
        return index >= 1 && index < int(counts.size()) ? double(counts[size_t(index)]) : 0.0;
    };
    double most = 0;
    const double all = double(histogram.all());
    for (int e = lowest; e < highest; ++e) most = std::max(most, count_at(e) / all);
    const auto lost = [&](int below) {
        double sum = double(counts[0]);
        for (int e = -126; e < below; ++e) sum += count_at(e);
        return 100 * sum / all;
    };
    Svg svg(
        900, 400, "Gradients by powers of two, and what fp16 can hold",
        fmt::format("Of all gradients of the linears' outputs in the first step {:.1f} % are "
                    "below 2^-25, which fp16 rounds to zero, and {:.1f} % below 2^-14, where it "
                    "has fewer bits; multiplied by 2^16 {:.2f} % and {:.1f} %.",
                    lost(-25), lost(-14), lost(-41), lost(-30)));
    const Axis across = {double(lowest), double(highest), 70, 880}, up = {0, most, 330, 130};
    const auto percent = [](double part) { return fmt::format("{:.0f} %", 100 * part); };
    draw_axis_beside(svg, up, across.begin, across.end, {0, most / 2, most}, percent);
    for (int e = lowest; e < highest; ++e) {
        const double height = up.begin - up(count_at(e) / all);
        const Role role = e < -25   ? Role::exposed
                          : e < -14 ? Role::optimizer
                          : e < 16  ? Role::parameters
                                    : Role::exposed;
        if (height > 0)
            svg.rect({across(e) + 0.5, up.begin - height, across(1) - across(0) - 1, height}, role,
                     fmt::format("2^{}: {:.2f} %", e, 100 * count_at(e) / all));
    }
    draw_legend(svg, across.begin, 58,
                {{Role::exposed, fmt::format("0 in fp16: {:.1f} %", lost(-25))},
                 {Role::optimizer, "subnormal: fewer bits"},
                 {Role::parameters, "all bits"}});
    // The beginning of fp16's range if the loss is multiplied by 2^16.
    svg.line({across(-41), 96}, {across(-41), up.begin}, {.dashed = true});
    svg.text(across(-41) + 6, 110,
             fmt::format("with S = 2^16 fp16 begins here: {:.2f} % are lost", lost(-41)),
             {.size = 13, .halo = true});
    std::vector<double> figures;
    for (int e = lowest + 2; e <= highest; e += 10) figures.push_back(e);
    draw_axis_below(svg, across, up.begin, figures,
                    [](double e) { return fmt::format("2^{:.0f}", e); });
    svg.text(475, 385, "magnitude of a gradient", {.anchor = Text::middle, .size = 13});
    write_picture(directory, "gradients.svg", svg);
}

// Reports what fp16 would lose of them.
inline void print_gradients(Report& report, const GradientHistogram& histogram, double scale) {
    if (!histogram) return;
    const int shift = int(std::lround(std::log2(scale)));
    const double all = double(histogram.all());
    const auto lost = [&](int by) { return 100 * double(histogram.below(-25 - by + shift)) / all; };
    print(fmt::format("\ngradients of the linears' outputs, first step: {:.4g} M numbers",
                      all / 1e6));
    for (int by : {0, 8, 16, 24})
        print(fmt::format("  loss times 2^{:<2}  {:6.2f} % are 0 in fp16", by, lost(by)));
    report.value("gradients", "lost_without_scale", lost(0));
    report.value("gradients", "lost_with_scale", lost(16));
}

}  // namespace ultrascale::mixed_precision
