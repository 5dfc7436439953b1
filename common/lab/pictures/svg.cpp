#include "svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "comm/comm.h"
#include "core/error.h"
#include "files/file.h"

namespace ultrascale {
namespace {

struct Look {
    const char* name;
    const char* light;
    const char* dark;
    const char* texture;  // a line through a tile of 8 x 8, drawn over the colour; "": none
};
constexpr const char *plain = "", *rising = "M-2 2l4-4M0 8l8-8M6 10l4-4",
                     *falling = "M-2 6l4 4M0 0l8 8M6-2l4 4", *upright = "M4 0v8", *level = "M0 4h8",
                     *dots = "M1 2h2M5 6h2", *crossed = "M0 0l8 8M0 8l8-8";
// In the order of Role. The colours are Okabe and Ito's ("Color Universal Design"), which differ
// for all kinds of colour blindness, and light enough for black words on either background.
constexpr Look looks[] = {{"ink", "#1f2328", "#e6edf3", plain},
                          {"faint", "#c4ccd4", "#3d444d", plain},
                          {"paper", "#ffffff", "#0d1117", plain},
                          {"on-fill", "#111111", "#111111", plain},
                          {"parameters", "#56b4e9", "#56b4e9", plain},
                          {"gradients", "#e69f00", "#e69f00", rising},
                          {"optimizer", "#1aa67d", "#1aa67d", dots},
                          {"activations", "#cc79a7", "#cc79a7", falling},
                          {"communication", "#dd6b1a", "#dd6b1a", upright},
                          {"workspace", "#a6a6a6", "#a6a6a6", level},
                          {"host", "#b8a9e0", "#b8a9e0", crossed},
                          {"forward", "#a5d8f5", "#a5d8f5", plain},
                          {"backward", "#56b4e9", "#56b4e9", plain},
                          {"update", "#a6a6a6", "#a6a6a6", level},
                          {"exposed", "#f0e442", "#f0e442", crossed},
                          {"rank0", "#56b4e9", "#56b4e9", plain},
                          {"rank1", "#e69f00", "#e69f00", plain},
                          {"rank2", "#1aa67d", "#1aa67d", plain},
                          {"rank3", "#cc79a7", "#cc79a7", plain},
                          {"rank4", "#f0e442", "#f0e442", plain},
                          {"rank5", "#dd6b1a", "#dd6b1a", plain},
                          {"rank6", "#a6a6a6", "#a6a6a6", plain},
                          {"rank7", "#b8a9e0", "#b8a9e0", plain}};
static_assert(std::size(looks) == size_t(Role::rank7) + 1);
const Look& look(Role role) { return looks[int(role)]; }

// A number with at most two decimals.
std::string number(double value) {
    check(std::isfinite(value), "a picture's coordinate is no number");
    std::string digits = fmt::format("{:.2f}", value);
    digits.erase(digits.find_last_not_of('0') + 1);
    if (digits.back() == '.') digits.pop_back();
    return digits == "-0" ? "0" : digits;
}

// The number of bytes of the UTF-8 character at the beginning of `text`; 0 if there is none.
size_t character_bytes(std::string_view text) {
    const unsigned char c = text[0];
    const size_t count = c < 0x80   ? 1
                         : c < 0xc2 ? 0
                         : c < 0xe0 ? 2
                         : c < 0xf0 ? 3
                         : c < 0xf5 ? 4
                                    : 0;
    if (text.size() < count) return 0;
    for (size_t i = 1; i < count; ++i)
        if ((text[i] & 0xc0) != 0x80) return 0;
    return count;
}

// Escapes text for XML. Bytes that XML cannot represent (control characters, bytes that are not
// UTF-8) become question marks; a directory's name may contain them.
std::string escaped(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const size_t count = character_bytes(text);
        const char c = text[0];
        if (count > 1)
            out += text.substr(0, count);
        else if (count == 0 || uint8_t(c) < ' ')
            out += '?';
        else if (c == '&')
            out += "&amp;";
        else if (c == '<')
            out += "&lt;";
        else if (c == '>')
            out += "&gt;";
        else if (c == '"')
            out += "&quot;";
        else
            out += c;
        text.remove_prefix(std::max<size_t>(count, 1));
    }
    return out;
}

std::string joined(const std::vector<Point>& points) {
    std::string out;
    for (const Point& p : points)
        out += fmt::format("{}{},{}", out.empty() ? "" : " ", number(p.x), number(p.y));
    return out;
}

// A role is a class that sets CSS's old variable `color`, from which fills and strokes take their
// colour. (Custom properties are newer, but viewers other than browsers do not know them.)
std::string style() {
    std::string light, dark;
    for (const Look& look : looks) {
        light += fmt::format(".{}{{color:{}}}", look.name, look.light);
        if (std::string_view(look.dark) != look.light)
            dark += fmt::format(".{}{{color:{}}}", look.name, look.dark);
    }
    const auto halo = [](const char* colour) { return fmt::format(".halo{{stroke:{}}}", colour); };
    light += halo(look(Role::paper).light), dark += halo(look(Role::paper).dark);
    return "text{font-family:sans-serif;fill:currentColor}.bold{font-weight:bold}\n"
           ".halo{stroke-width:4;stroke-linejoin:round;paint-order:stroke}\n"
           ".fill{fill:currentColor}.line{fill:none;stroke:currentColor}\n" +
           light + "\n@media (prefers-color-scheme:dark){" + dark + "}\n";
}

}  // namespace

Svg::Svg(double width, double height, std::string_view title, std::string_view description,
         double paper)
    : width_(width), height_(height) {
    body_ = fmt::format(
        R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{5}" height="{6}" )"
        R"(role="img" aria-labelledby="title description">)"
        "\n<title id=\"title\">{2}</title>\n<desc id=\"description\">{3}</desc>\n<style>\n{4}"
        "</style>\n<defs>\n",
        number(width), number(height), escaped(title), escaped(description), style(),
        paper > 0 ? number(paper) + "mm" : number(width),
        paper > 0 ? number(height / width * paper) + "mm" : number(height));
    for (const Look& look : looks)
        if (*look.texture)
            body_ += fmt::format(R"(<pattern id="{}-texture" width="8" height="8" )"
                                 R"(patternUnits="userSpaceOnUse"><path d="{}" fill="none" )"
                                 R"(stroke="#ffffff" stroke-width="1.5" stroke-opacity="0.55"/>)"
                                 "</pattern>\n",
                                 look.name, look.texture);
    body_ += "</defs>\n";
    rect({0, 0, width, height}, Role::paper);
    text(20, 30, title, {.size = 18, .bold = true});
}

void Svg::text(double x, double y, std::string_view words, const Text& style) {
    constexpr const char* anchors[] = {"start", "middle", "end"};
    body_ += fmt::format(
        R"(<text x="{}" y="{}" font-size="{}" text-anchor="{}" class="{}{}{}">{}</text>)"
        "\n",
        number(x), number(y), number(style.size), anchors[style.anchor], look(style.role).name,
        style.bold ? " bold" : "", style.halo ? " halo" : "", escaped(words));
}

void Svg::label(const Box& box, std::string_view words, Text style) {
    style.anchor = Text::middle;
    text(box.center().x, box.center().y + 0.35 * style.size, words, style);
}

void Svg::fill(const std::string& element, const std::string& geometry, Role role,
               std::string_view hint) {
    body_ += fmt::format(R"(<{} {} class="fill {}")", element, geometry, look(role).name);
    body_ +=
        hint.empty() ? "/>\n" : fmt::format("><title>{}</title></{}>\n", escaped(hint), element);
    if (*look(role).texture)  // above the colour, and transparent to the mouse
        body_ += fmt::format("<{} {} fill=\"url(#{}-texture)\" pointer-events=\"none\"/>\n",
                             element, geometry, look(role).name);
}

void Svg::rect(const Box& box, Role role, std::string_view hint) {
    fill("rect",
         fmt::format(R"(x="{}" y="{}" width="{}" height="{}")", number(box.x), number(box.y),
                     number(box.width), number(box.height)),
         role, hint);
}

void Svg::polygon(const std::vector<Point>& points, Role role, std::string_view hint) {
    fill("polygon", fmt::format(R"(points="{}")", joined(points)), role, hint);
}

void Svg::outline(const Box& box, const Line& style) {
    polyline({{box.x, box.y},
              {box.right(), box.y},
              {box.right(), box.bottom()},
              {box.x, box.bottom()},
              {box.x, box.y}},
             style);
}

void Svg::polyline(const std::vector<Point>& points, const Line& style) {
    body_ += fmt::format(R"(<polyline points="{}" class="line {}" stroke-width="{}"{}/>)"
                         "\n",
                         joined(points), look(style.role).name, number(style.width),
                         style.dashed ? R"( stroke-dasharray="5 4")" : "");
}

void Svg::arrow(const std::vector<Point>& points, const Line& style) {
    check(points.size() >= 2, "an arrow needs a beginning and an end");
    std::vector<Point> shaft = points;
    const Point tip = points.back(), before = points[points.size() - 2];
    const double length = std::hypot(tip.x - before.x, tip.y - before.y);
    check(length > 0, "an arrow's last piece has no direction");
    const Point along = {(tip.x - before.x) / length, (tip.y - before.y) / length};
    const double head = 6 + 2 * style.width, half = head / 2.4;
    const Point base = {tip.x - head * along.x, tip.y - head * along.y};
    shaft.back() = base;
    polyline(shaft, style);
    const std::vector<Point> triangle = {tip,
                                         {base.x - half * along.y, base.y + half * along.x},
                                         {base.x + half * along.y, base.y - half * along.x}};
    body_ += fmt::format("<polygon points=\"{}\" class=\"fill {}\"/>\n", joined(triangle),
                         look(style.role).name);
}

std::string Svg::document() const { return body_ + "</svg>\n"; }

double text_width(std::string_view words, double size) {
    double characters = 0;
    for (const char c : words) characters += (c & 0xc0) != 0x80;  // no continuation bytes
    return 0.55 * size * characters;
}

static bool keeping = false;
static std::vector<std::pair<std::string, std::string>> kept;
void keep_pictures() { keeping = true; }
const std::vector<std::pair<std::string, std::string>>& kept_pictures() { return kept; }
bool draws(const std::string& directory) { return keeping || !directory.empty(); }

void write_picture(const std::string& directory, const std::string& name, const Svg& svg) {
    if (Communicator::world().rank() != 0) return;
    if (keeping) kept.emplace_back(name, svg.document());
    if (directory.empty()) return;
    write_file(directory + "/" + name, svg.document());
    fmt::print("\npicture written to {}/{}\n", directory, name);
}

void check_can_draw(const std::string& directory) {
    make_directories(directory);
    AtomicFile probe(directory + "/picture.svg");
}

}  // namespace ultrascale
