// Kinds of charts that chapters draw with svg.h. A chapter brings the figures and the words.
#pragma once

#include <functional>

#include "svg.h"

namespace ultrascale {

// Maps figures to pixels along an axis: `from` is at pixel `begin`, `to` at pixel `end`.
struct Axis {
    double from, to, begin, end;
    double operator()(double figure) const {
        return begin + (figure - from) / (to - from) * (end - begin);
    }
};
// Round figures from 0 to `highest`, about `count` of them, in steps of 1, 2 or 5 times a power of
// ten, or for bytes times a power of 1024.
std::vector<double> ticks(double highest, int count);
std::vector<double> byte_ticks(double highest, int count);

// Draws the figures below an axis that runs to the right, at height y; or beside an axis that runs
// upwards, at `left`, with lines across the chart to `right`.
using Words = std::function<std::string(double)>;
void draw_axis_below(Svg& svg, const Axis& across, double y, const std::vector<double>& figures,
                     const Words& words);
void draw_axis_beside(Svg& svg, const Axis& up, double left, double right,
                      const std::vector<double>& figures, const Words& words);

// What an axis shows: the figures from one to another, which of them are written, and how.
struct AxisScale {
    double from, to;
    std::vector<double> figures;
    Words words;
};
// From 0, in steps as ticks() has them.
AxisScale linear_scale(double to, int count);
// In octaves: figures are the powers of two. 3 is written "8", 12 "4k".
AxisScale binary_scale(int from, int to);

// Draws a chart's title, its axes around `area`, and what the lower one means.
struct Panel {
    Axis across, up;
};
Panel draw_panel(Svg& svg, const Box& area, std::string_view title, std::string_view below,
                 const AxisScale& across, const AxisScale& up, bool names_rows = true);
// Draws lines of small print; the first one's baseline is at y.
void draw_caption(Svg& svg, double y, const std::vector<std::string>& lines);

// Draws a sample of each colour with its meaning, in a row that begins at (x, y). Returns where the
// row ends.
struct Meaning {
    Role role;
    std::string words;
};
double draw_legend(Svg& svg, double x, double y, const std::vector<Meaning>& meanings);

// A part of a bar: its length on the axis. The hint is as in svg.h.
struct Part {
    Role role;
    double amount;
    std::string hint;
};
// Draws parts one after the other from the axis' 0. Returns where the bar ends.
double draw_stacked_bar(Svg& svg, const Axis& across, double y, double height,
                        const std::vector<Part>& parts);

// An event from `begin` to `end` in one lane of a timeline, with its words inside if there is room.
// An event narrower than a quarter of a pixel is drawn as wide as that.
struct Stretch {
    Role role;
    double begin, end;
    std::string hint, words = "";
};
void draw_lane(Svg& svg, const Axis& across, double y, double height,
               const std::vector<Stretch>& stretches);

// The shape of a mark, so that curves can be told apart without colours. A hollow one is the
// convention for what others have published.
enum class Mark { square, diamond, triangle, circle };
void draw_mark(Svg& svg, Point at, Mark shape, Role role, std::string_view hint = "",
               double radius = 4.5, bool hollow = false);

// A curve through figures, given in the scales' units, with a mark at each. The hint of a mark is
// "name: y at x", with the values as `words` says. A curve that is hollow has marks alone.
struct Curve {
    std::string name;
    std::vector<Point> figures;
    Line line = {};
    Mark mark = Mark::square;
    bool hollow = false;
};
// Returns the height of the curve's end, for its name.
double draw_curve(Svg& svg, const Panel& panel, const Curve& curve,
                  const std::function<std::string(Point)>& words);

// Writes each name beside the end of its curve, at x, in the order of their heights and never
// closer than `pitch` to each other.
void draw_names(Svg& svg, double x, std::vector<std::pair<double, std::string>> names,
                double pitch = 16);

// Draws layers stacked over time: columns[t][layer], all columns equally wide. A layer that is
// empty everywhere is omitted. A layer's hint is its words.
void draw_stacked_areas(Svg& svg, const Axis& across, const Axis& up,
                        const std::vector<std::vector<double>>& columns,
                        const std::vector<Meaning>& layers);

}  // namespace ultrascale
