// --compare with --svg: recipes.svg shows the bytes of a linear's parameter in each recipe,
// curves.svg how far each recipe's loss is from fp32's.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "../3_recipes.h"
#include "core/memory.h"
#include "lab/pictures/charts.h"

namespace ultrascale::mixed_precision {

inline void draw_recipe_bytes(const std::string& directory) {
    if (!draws(directory)) return;
    constexpr double top = 104, pitch = 34;
    const std::vector<Recipe>& recipes = all_recipes();
    std::string figures;
    for (const Recipe& r : recipes)
        figures += fmt::format("{}: {} bytes. ", r.name, bytes_per_parameter(r));
    Svg svg(900, top + pitch * double(recipes.size()) + 44, "Bytes of a linear's parameter",
            figures);
    draw_legend(svg, 20, 56,
                {{Role::parameters, "weights"},
                 {Role::activations, "master"},
                 {Role::gradients, "gradients, and their sums"},
                 {Role::optimizer, "Adam's m and v"}});
    const Axis across = {0, 20, 110, 760};
    double y = top;
    for (const Recipe& r : recipes) {
        svg.text(across.begin - 12, y + 17, r.name, {.anchor = Text::end, .bold = true});
        const auto part = [&](Role role, const char* what, std::optional<DType> dtype) {
            const double bytes = dtype ? double(dtype_bytes(*dtype)) : 0;
            return Part{role, bytes,
                        fmt::format("{}, {}: {}", r.name, what, dtype ? dtype_name(*dtype) : "-")};
        };
        std::vector<Part> parts = {part(Role::parameters, "weights", r.weights),
                                   part(Role::activations, "master", r.master),
                                   part(Role::gradients, "accumulated", r.accumulated),
                                   part(Role::gradients, "gradients", r.gradients),
                                   part(Role::optimizer, "m", r.m),
                                   part(Role::optimizer, "v", r.v)};
        std::erase_if(parts, [](const Part& p) { return p.amount == 0; });
        const double end = draw_stacked_bar(svg, across, y, 22, parts);
        svg.text(end + 8, y + 17,
                 fmt::format("{}{}", bytes_per_parameter(r),
                             r.book_bytes > 0 && r.book_bytes != double(bytes_per_parameter(r))
                                 ? fmt::format(" (the playbook: {:g})", r.book_bytes)
                                 : ""),
                 {.size = 13});
        y += pitch;
    }
    draw_axis_below(svg, across, y, {0, 4, 8, 12, 16, 20},
                    [](double bytes) { return fmt::format("{:g}", bytes); });
    write_picture(directory, "recipes.svg", svg);
}

// A recipe's loss after each step.
struct LossCurve {
    std::string name;
    std::vector<double> losses;
};

// Draws each curve's difference from the first one, averaged over `window` steps.
inline void draw_loss_curves(const std::string& directory, const std::vector<LossCurve>& curves) {
    if (!draws(directory) || curves.size() < 2 || curves[0].losses.size() < 2) return;
    const size_t steps = curves[0].losses.size(), window = std::max<size_t>(steps / 20, 1);
    std::vector<std::vector<double>> differences;
    double most = 1e-6;
    std::string figures;
    for (const LossCurve& curve : curves) {
        std::vector<double> mean;
        for (size_t end = window; end <= steps; ++end) {
            double sum = 0;
            for (size_t s = end - window; s < end; ++s)
                sum += curve.losses[s] - curves[0].losses[s];
            mean.push_back(sum / double(window));
        }
        for (double d : mean) most = std::max(most, std::abs(d));
        figures += fmt::format("{}: {:+.4f}. ", curve.name, mean.back());
        differences.push_back(std::move(mean));
    }
    most = std::min(most, 0.2);  // curves that diverge leave the picture
    Svg svg(900, 420, fmt::format("Loss, less that of {}", curves[0].name),
            fmt::format("Means over {}, in the end: {}", format_count(int64_t(window), "step"),
                        figures));
    const Axis across = {0, double(steps), 90, 700}, up = {-most, most, 370, 70};
    draw_axis_beside(svg, up, across.begin, across.end, {-most, -most / 2, 0, most / 2, most},
                     [](double d) { return fmt::format("{:+.3f}", d); });
    for (size_t i = 1; i < curves.size(); ++i) {
        std::vector<Point> points;
        for (size_t s = 0; s < differences[i].size(); ++s)
            points.push_back(
                {across(double(s + window)), up(std::clamp(differences[i][s], -most, most))});
        const Role role = role_of_rank(int(i - 1));
        svg.polyline(points, {.role = role, .width = 2, .dashed = i > 8});
        const double y = 80 + 26 * double(i - 1);
        svg.line({730, y - 5}, {760, y - 5}, {.role = role, .width = 3, .dashed = i > 8});
        svg.text(768, y, fmt::format("{} {:+.4f}", curves[i].name, differences[i].back()),
                 {.size = 13});
    }
    draw_axis_below(svg, across, up.begin, ticks(double(steps), 5),
                    [](double step) { return fmt::format("{:.0f}", step); });
    svg.text(395, 410, fmt::format("step (means over {})", window),
             {.anchor = Text::middle, .size = 13});
    write_picture(directory, "curves.svg", svg);
}

}  // namespace ultrascale::mixed_precision
