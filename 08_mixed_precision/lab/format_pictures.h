// --demo formats with --svg: range.svg shows which orders of magnitude each format reaches, and
// resolution.svg to which numbers 10,000 points between 1 and 2 are rounded. After the playbook's
// figures in "Mixed precision training".
#pragma once

#include <set>

#include "../1_formats.h"
#include "lab/pictures/charts.h"

namespace ultrascale::mixed_precision {

inline constexpr int range_decades = 40;  // on each side of 1
inline constexpr int resolution_points = 10000;

inline void draw_range(const std::string& directory) {
    constexpr double top = 104, pitch = 36;
    const Axis across = {-range_decades - 6, range_decades, 90, 870};
    std::string figures;
    for_each_format([&]<class F>(const char* name) {
        figures += fmt::format("{}: {:.2g} to {:.2g}. ", name, FormatLimits<F>::smallest,
                               FormatLimits<F>::largest);
    });
    Svg svg(900, 420, "Range: the orders of magnitude that a format reaches", figures);
    double y = top;
    for_each_format([&]<class F>(const char* name) {
        using Limits = FormatLimits<F>;
        const double smallest = across(std::log10(Limits::smallest)),
                     normal = across(std::log10(Limits::smallest_normal)),
                     largest = across(std::log10(Limits::largest));
        svg.text(across.begin - 12, y + 16, name, {.anchor = Text::end, .bold = true});
        svg.rect({smallest, y, normal - smallest, 22}, Role::exposed,
                 fmt::format("{}, subnormal: from {:.2g}", name, Limits::smallest));
        svg.rect({normal, y, largest - normal, 22}, Role::parameters,
                 fmt::format("{}, normal: {:.2g} to {:.2g}", name, Limits::smallest_normal,
                             Limits::largest));
        svg.text(std::min(largest + 6, 818.0), y - 3, fmt::format("{:.3g}", Limits::largest),
                 {.size = 12, .halo = true});
        y += pitch;
    });
    std::vector<double> figures_below;
    for (int decade = -40; decade <= range_decades; decade += 10) figures_below.push_back(decade);
    draw_axis_below(svg, across, y, figures_below,
                    [](double power) { return fmt::format("1e{:+.0f}", power); });
    draw_legend(svg, across.begin, 56,
                {{Role::parameters, "normal numbers: full precision"},
                 {Role::exposed, "subnormal: fewer and fewer bits"}});
    write_picture(directory, "range.svg", svg);
}

// Returns the different numbers to which evenly spaced points between 1 and 2 are rounded.
template <class F>
std::set<float> rounded_points(int points) {
    std::set<float> numbers;
    for (int i = 0; i < points; ++i)
        numbers.insert(F::decode(F::encode(float(1 + (i + 0.5) / points))));
    return numbers;
}

inline void draw_resolution(const std::string& directory) {
    constexpr double top = 104, pitch = 40;
    const Axis across = {1, 2, 90, 690};
    std::string figures;
    for_each_format([&]<class F>(const char* name) {
        figures +=
            fmt::format("{}: {} numbers. ", name, rounded_points<F>(resolution_points).size());
    });
    Svg svg(900, 430, "Resolution: 10,000 points between 1 and 2, rounded", figures);
    svg.text(across.begin, 56,
             "Each mark is a number that is left. Where marks touch, the bar is full.",
             {.size = 13});
    double y = top;
    for_each_format([&]<class F>(const char* name) {
        const std::set<float> numbers = rounded_points<F>(resolution_points);
        svg.text(across.begin - 12, y + 18, name, {.anchor = Text::end, .bold = true});
        // Marks closer than a pixel are one bar.
        const double spacing = (across.end - across.begin) / double(numbers.size());
        const std::string hint = fmt::format("{}: {} numbers", name, numbers.size());
        if (spacing < 2)
            svg.rect({across.begin, y, across.end - across.begin, 24}, Role::parameters, hint);
        else
            for (float number : numbers)
                svg.rect({across(number) - 1, y, 2, 24}, Role::parameters, hint);
        svg.text(
            across.end + 16, y + 18,
            fmt::format("{} {}", numbers.size(),
                        numbers.size() < resolution_points ? "numbers" : "points, all of them"),
            {.size = 13});
        y += pitch;
    });
    draw_axis_below(svg, across, y, {1, 1.25, 1.5, 1.75, 2},
                    [](double x) { return fmt::format("{:g}", x); });
    write_picture(directory, "resolution.svg", svg);
}

inline void draw_formats(const std::string& directory) {
    if (directory.empty()) return;
    draw_range(directory);
    draw_resolution(directory);
}

}  // namespace ultrascale::mixed_precision
