#include "charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace ultrascale {

std::vector<double> ticks(double highest, int count) {
    std::vector<double> figures = {0};
    if (!(highest > 0)) return figures;
    const double wanted = highest / count, power = std::pow(10, std::floor(std::log10(wanted)));
    double step = 10 * power;
    for (const double factor : {5.0, 2.0, 1.0})
        if (factor * power >= wanted * 0.999) step = factor * power;
    for (int i = 1; i * step <= highest * 1.0001; ++i) figures.push_back(i * step);
    return figures;
}

std::vector<double> byte_ticks(double highest, int count) {
    double unit = 1;
    while (highest / unit >= 1024) unit *= 1024;
    std::vector<double> figures = ticks(highest / unit, count);
    for (double& figure : figures) figure *= unit;
    return figures;
}

void draw_axis_below(Svg& svg, const Axis& across, double y, const std::vector<double>& figures,
                     const Words& words) {
    svg.line({across.begin, y}, {across.end, y});
    for (const double figure : figures) {
        const double x = across(figure);
        svg.line({x, y}, {x, y + 5});
        svg.text(x, y + 19, words(figure), {.anchor = Text::middle, .size = 12});
    }
}

void draw_axis_beside(Svg& svg, const Axis& up, double left, double right,
                      const std::vector<double>& figures, const Words& words) {
    for (const double figure : figures) {
        svg.line({left, up(figure)}, {right, up(figure)}, {.role = Role::faint});
        svg.text(left - 6, up(figure) + 4, words(figure), {.anchor = Text::end, .size = 12});
    }
}

double draw_legend(Svg& svg, double x, double y, const std::vector<Meaning>& meanings) {
    for (const Meaning& meaning : meanings) {
        const Box sample = {x, y, 22, 14};
        svg.rect(sample, meaning.role);
        svg.outline(sample);
        svg.text(sample.right() + 6, y + 12, meaning.words, {.size = 13});
        x = sample.right() + 6 + text_width(meaning.words, 13) + 18;
    }
    return x;
}

double draw_stacked_bar(Svg& svg, const Axis& across, double y, double height,
                        const std::vector<Part>& parts) {
    double sum = 0;
    for (const Part& part : parts) {
        if (part.amount <= 0) continue;
        const double begin = across(sum), end = across(sum += part.amount);
        const Box box = {begin, y, end - begin, height};
        svg.rect(box, part.role, part.hint);
        svg.outline(box);
    }
    return across(sum);
}

void draw_lane(Svg& svg, const Axis& across, double y, double height,
               const std::vector<Stretch>& stretches) {
    for (const Stretch& s : stretches) {
        const Box box = {across(s.begin), y, std::max(across(s.end) - across(s.begin), 0.25),
                         height};
        svg.rect(box, s.role, s.hint);
        if (box.width > 3) svg.outline(box, {.width = 0.5});
        if (text_width(s.words, 13) + 6 < box.width)
            svg.label(box, s.words, {.size = 13, .role = Role::on_fill});
    }
}

void draw_stacked_areas(Svg& svg, const Axis& across, const Axis& up,
                        const std::vector<std::vector<double>>& columns,
                        const std::vector<Meaning>& layers) {
    // The upper edge of the layers below a layer, and then of the layer itself, as stairs.
    const auto stairs = [&](const std::vector<double>& heights) {
        std::vector<Point> edge;
        for (size_t t = 0; t < heights.size(); ++t) {
            if (t > 0 && heights[t] == heights[t - 1]) continue;
            const double x =
                across.begin + (across.end - across.begin) * double(t) / double(heights.size());
            if (t > 0) edge.push_back({x, up(heights[t - 1])});
            edge.push_back({x, up(heights[t])});
        }
        edge.push_back({across.end, up(heights.back())});
        return edge;
    };
    std::vector<double> below(columns.size(), 0);
    std::vector<std::vector<Point>> edges;  // drawn last: a layer would cover half of one below
    for (size_t layer = 0; layer < layers.size(); ++layer) {
        std::vector<double> above = below;
        for (size_t t = 0; t < columns.size(); ++t) above[t] += columns[t][layer];
        if (above == below) continue;
        std::vector<Point> around = stairs(above), lower = stairs(below);
        edges.push_back(around);
        around.insert(around.end(), lower.rbegin(), lower.rend());
        svg.polygon(around, layers[layer].role, layers[layer].words);
        below = std::move(above);
    }
    for (const std::vector<Point>& edge : edges) svg.polyline(edge, {.width = 0.75});
}

}  // namespace ultrascale
