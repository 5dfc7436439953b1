#include "charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

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

AxisScale linear_scale(double to, int count) {
    return {0, to, ticks(to, count), [](double f) { return fmt::format("{:.0f}", f); }};
}

AxisScale binary_scale(int from, int to) {
    AxisScale scale{double(from), double(to), {}, [](double power) {
                        return power < 10 ? fmt::format("{:.3g}", std::exp2(power))
                                          : fmt::format("{:.0f}k", std::exp2(power - 10));
                    }};
    for (int power = from; power <= to; ++power) scale.figures.push_back(power);
    return scale;
}

Panel draw_panel(Svg& svg, const Box& area, std::string_view title, std::string_view below,
                 const AxisScale& across, const AxisScale& up, bool names_rows) {
    const Panel panel{{across.from, across.to, area.x, area.right()},
                      {up.from, up.to, area.bottom(), area.y}};
    svg.text(area.x, area.y - 14, title, {.size = 13, .bold = true});
    for (const double figure : up.figures) {
        const double y = panel.up(figure);
        svg.line({area.x - 6, y}, {area.right() + 6, y}, {.role = Role::faint});
        if (names_rows)
            svg.text(area.x - 12, y + 4, up.words(figure), {.anchor = Text::end, .size = 12});
    }
    draw_axis_below(svg, panel.across, area.bottom(), across.figures, across.words);
    if (!below.empty())
        svg.text(area.center().x, area.bottom() + 36, below, {.anchor = Text::middle, .size = 12});
    return panel;
}

void draw_caption(Svg& svg, double y, const std::vector<std::string>& lines) {
    for (size_t i = 0; i < lines.size(); ++i)
        svg.text(20, y + 18 * double(i), lines[i], {.size = 12});
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
        if (!s.words.empty() && text_width(s.words, 13) + 6 < box.width)
            svg.label(box, s.words, {.size = 13, .role = Role::on_fill});
    }
}

void draw_mark(Svg& svg, Point at, Mark shape, Role role, std::string_view hint, double radius,
               bool hollow) {
    const int corners = shape == Mark::circle ? 16 : shape == Mark::triangle ? 3 : 4;
    const double turned = shape == Mark::square ? 0.5 : 0,  // of the angle between two corners
        wide = shape == Mark::circle ? radius : 1.25 * radius;
    std::vector<Point> points;
    for (int i = 0; i <= corners; ++i) {
        const double angle = 2 * std::numbers::pi * (i + turned) / corners;
        points.push_back({at.x + wide * std::sin(angle), at.y - wide * std::cos(angle)});
    }
    svg.polygon({points.begin(), points.end() - 1}, hollow ? Role::paper : role, hint);
    svg.polyline(points, {.width = hollow ? 1.5 : 0.75});
}

double draw_curve(Svg& svg, const Panel& panel, const Curve& curve,
                  const std::function<std::string(Point)>& words) {
    std::vector<Point> points;
    for (const Point& figure : curve.figures)
        points.push_back({panel.across(figure.x), panel.up(figure.y)});
    if (!curve.hollow) svg.polyline(points, curve.line);
    for (size_t i = 0; i < points.size(); ++i)
        draw_mark(svg, points[i], curve.mark, curve.line.role,
                  fmt::format("{}: {}", curve.name, words(curve.figures[i])), 4.5, curve.hollow);
    return points.back().y;
}

void draw_names(Svg& svg, double x, std::vector<std::pair<double, std::string>> names,
                double pitch) {
    std::ranges::sort(names);
    for (int pass = 0; pass < 50; ++pass)  // neighbours that are too close make room for each other
        for (size_t i = 1; i < names.size(); ++i)
            if (const double lacks = pitch - (names[i].first - names[i - 1].first); lacks > 0)
                names[i - 1].first -= lacks / 2, names[i].first += lacks / 2;
    for (const auto& [y, words] : names) svg.text(x, y + 4, words, {.size = 12, .halo = true});
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
