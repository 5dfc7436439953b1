// A picture that a program draws of its own run (--svg), for a README. It is readable on a light
// and on a dark background, by the colour-blind (each colour has a texture, and chapters label what
// they draw), and by a screen reader. The same calls give the same bytes.
//
//     Svg svg(900, 300, "ZeRO: what a rank holds", "Bars for stages 0 to 3, stacked by category");
//     svg.rect({100, 40, 320, 24}, Role::parameters, "stage 0, parameters: 6.3 MiB");
//     svg.text(94, 57, "stage 0", {.anchor = Text::end});
//     svg.arrow({{100, 90}, {420, 90}});
//     write_picture(options.svg, "stages.svg", svg);
//
// Coordinates are pixels from the upper left corner; y grows downwards. 900 is as wide as GitHub
// shows a picture without shrinking it. Whole charts are in charts.h.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/memory.h"

namespace ultrascale {

// The meaning of a colour. Pictures name roles and never colours, so that gradients look alike in
// all chapters.
enum class Role {
    ink,      // words, axes, arrows
    faint,    // grids
    paper,    // the background
    on_fill,  // words on any of the colours below
    parameters,
    gradients,
    optimizer,
    activations,
    communication,
    workspace,
    host,  // from parameters to here in the order of core/memory.h's categories
    forward,
    backward,
    update,
    exposed,  // computation waits for communication
    rank0,    // eight ranks, then the colours begin again
    rank7 = rank0 + 7
};
inline Role role_of(Memory category) { return Role(int(Role::parameters) + int(category)); }
inline Role role_of_rank(int rank) { return Role(int(Role::rank0) + rank % 8); }

struct Point {
    double x, y;
};
struct Box {
    double x, y, width, height;  // of the upper left corner
    double right() const { return x + width; }
    double bottom() const { return y + height; }
    Point center() const { return {x + width / 2, y + height / 2}; }
};

struct Text {
    enum Anchor { start, middle, end };  // which end of the words is at x
    Anchor anchor = start;
    double size = 14;  // pixels; below 12 it is too small to read on GitHub
    bool bold = false;
    bool halo = false;  // outlined with the background's colour: for words over a chart
    Role role = Role::ink;
};
struct Line {
    Role role = Role::ink;
    double width = 1;
    bool dashed = false;
};

class Svg {
public:
    // The title is drawn at the top; the description is for people who cannot see the picture. A
    // poster is printed `paper` millimetres wide.
    Svg(double width, double height, std::string_view title, std::string_view description,
        double paper = 0);
    double width() const { return width_; }
    double height() const { return height_; }

    // The words' baseline is at y. UTF-8.
    void text(double x, double y, std::string_view words, const Text& style = {});
    // Draws words in the middle of a box, on its colour.
    void label(const Box& box, std::string_view words, Text style = {.role = Role::on_fill});
    // Draws a box in the role's colour and texture. The hint is shown under the mouse if the file
    // is opened by itself, and tells tests what the shape stands for.
    void rect(const Box& box, Role fill, std::string_view hint = "");
    void polygon(const std::vector<Point>& points, Role fill, std::string_view hint = "");
    void outline(const Box& box, const Line& style = {});
    void line(Point from, Point to, const Line& style = {}) { polyline({from, to}, style); }
    void polyline(const std::vector<Point>& points, const Line& style = {});
    // Draws a polyline with an arrowhead at its end.
    void arrow(const std::vector<Point>& points, const Line& style = {.width = 1.5});

    std::string document() const;  // the file's bytes

private:
    void fill(const std::string& element, const std::string& geometry, Role role,
              std::string_view hint);
    double width_, height_;
    std::string body_;
};

// The approximate width of words in pixels, to place what stands beside them.
double text_width(std::string_view words, double size = 14);

// Writes `directory`/`name` (through a temporary name); writes nothing if --svg was not given. All
// ranks may call it, and rank 0 writes.
void write_picture(const std::string& directory, const std::string& name, const Svg& svg);

// Keeps all pictures that are written from now on, as (name, document), for the page of --html. It
// does so with or without --svg.
void keep_pictures();
const std::vector<std::pair<std::string, std::string>>& kept_pictures();
// Whether a picture for `directory` would be seen: written, or kept for the page.
bool draws(const std::string& directory);

// Throws UserError if the directory cannot be created or written to.
void check_can_draw(const std::string& directory);

}  // namespace ultrascale
