#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "lab/pictures/svg.h"
#include "tiling.h"

namespace ultrascale::kernels {
namespace {

struct Area {
    int64_t row = 0, column = 0, rows = 0, columns = 0;
    std::string text() const { return fmt::format("{} x {}", rows, columns); }
};

// Each owner's elements, cut into rectangles.
using Areas = std::map<int, std::vector<Area>>;
template <class Of>  // int of(row, column); negative: nobody
Areas areas_of(const Area& within, const Of& of) {
    Areas areas;
    std::set<std::pair<int64_t, int64_t>> seen;
    for (int64_t row = within.row; row < within.row + within.rows; ++row)
        for (int64_t column = within.column; column < within.column + within.columns; ++column) {
            const int owner = of(row, column);
            if (owner < 0 || seen.contains({row, column})) continue;
            const auto its = [&](int64_t r, int64_t c) {
                return r < within.row + within.rows && c < within.column + within.columns &&
                       of(r, c) == owner && !seen.contains({r, c});
            };
            Area area{row, column, 1, 1};
            while (its(row, column + area.columns)) ++area.columns;
            const auto whole_row = [&](int64_t r) {
                for (int64_t c = 0; c < area.columns; ++c)
                    if (!its(r, column + c)) return false;
                return true;
            };
            while (whole_row(row + area.rows)) ++area.rows;
            for (int64_t r = 0; r < area.rows; ++r)
                for (int64_t c = 0; c < area.columns; ++c) seen.insert({row + r, column + c});
            areas[owner].push_back(area);
        }
    return areas;
}
// The smallest area that contains all of them.
Area around(const std::vector<Area>& areas) {
    Area all = areas.at(0);
    int64_t bottom = 0, right = 0;
    for (const Area& area : areas) {
        all.row = std::min(all.row, area.row), all.column = std::min(all.column, area.column);
        bottom = std::max(bottom, area.row + area.rows);
        right = std::max(right, area.column + area.columns);
    }
    all.rows = bottom - all.row, all.columns = right - all.column;
    return all;
}
int64_t elements(const std::vector<Area>& areas) {
    int64_t sum = 0;
    for (const Area& area : areas) sum += area.rows * area.columns;
    return sum;
}
// The number of rows, or columns, that the areas cover.
int64_t lines(const std::vector<Area>& areas, int64_t Area::*begin, int64_t Area::*count) {
    std::set<int64_t> found;
    for (const Area& area : areas)
        for (int64_t i = 0; i < area.*count; ++i) found.insert(area.*begin + i);
    return int64_t(found.size());
}

struct Frame {
    Area area;
    double x, y, scale;  // pixels an element
    Box box(const Area& part) const {
        return {x + scale * double(part.column - area.column),
                y + scale * double(part.row - area.row), scale * double(part.columns),
                scale * double(part.rows)};
    }
};

// A stands left of C and B above it, and so do the parts of them that a part of C needs. One
// colour for each level: a block, a warp, a thread.
const Role a_role = role_of_rank(1), b_role = role_of_rank(2), block_role = Role::forward,
           warp_role = role_of_rank(4), thread_role = role_of_rank(7);
constexpr double top = 132, strip = 34, gap = 4, below = 340;

void shape(Svg& svg, const Box& box, Role role, const std::string& hint = "") {
    svg.rect(box, role, hint);
    svg.outline(box);
}
void words(Svg& svg, double x, const std::string& title, const std::vector<std::string>& all) {
    svg.text(x, top - 18, title, {.size = 15, .bold = true});
    double y = below;
    for (const std::string& line : all) svg.text(x, y += 19, line, {.size = 13});
}

void draw_memory(Svg& svg, const Tiling& t, const Area& block, const Areas& blocks) {
    const double scale = 120 / double(std::max(t.M, t.N)), k_scale = strip / double(t.K);
    const Frame frame{{0, 0, t.M, t.N}, 20 + strip + gap, top + strip + gap, scale};
    const Box c = frame.box(frame.area), its = frame.box(block);
    const double step = k_scale * double(t.k_step);
    shape(svg, {20, c.y, strip, c.height}, Role::faint, fmt::format("A: {} x {}", t.M, t.K));
    shape(svg, {c.x, top, c.width, strip}, Role::faint, fmt::format("B: {} x {}", t.K, t.N));
    shape(svg, {20, its.y, step, its.height}, a_role);
    shape(svg, {its.x, top, its.width, step}, b_role);
    svg.outline({20, its.y, strip, its.height});
    svg.outline({its.x, top, its.width, strip});
    svg.rect(c, Role::faint, fmt::format("C: {} x {}", t.M, t.N));
    svg.rect(its, block_role);
    for (const auto& [number, areas] : blocks) svg.outline(frame.box(areas.at(0)));
    words(svg, 20, fmt::format("C: {} x {}", t.M, t.N),
          {fmt::format("A: {} x {}, B: {} x {}", t.M, t.K, t.K, t.N),
           fmt::format("{} blocks of {} threads", blocks.size(), t.threads)});
}

void draw_block(Svg& svg, const Tiling& t, const Area& block, const Areas& warps) {
    const double scale = 150 / double(std::max(block.rows, block.columns)), x = 200;
    const double thick = std::min(strip, std::max(6., scale * double(t.k_step)));
    const Frame frame{block, x + strip + gap, top + strip + gap, scale};
    const Box c = frame.box(block);
    shape(svg, {c.x - gap - thick, c.y, thick, c.height}, a_role,
          fmt::format("a: {} x {}", block.rows, t.k_step));
    shape(svg, {c.x, c.y - gap - thick, c.width, thick}, b_role,
          fmt::format("b: {} x {}", t.k_step, block.columns));
    svg.rect(c, block_role, "block: " + block.text());
    for (const auto& [warp, areas] : warps)
        for (const Area& area : areas) {
            const Box box = frame.box(area);
            if (warp == 0) svg.rect(box, warp_role);
            svg.outline(box);
            const std::string name = fmt::format("warp {}", warp);
            if (&area == &areas[0] && box.height > 14 && box.width > text_width(name, 12))
                svg.label(box, name, {.size = 12, .role = Role::on_fill});
        }
    words(svg, x, "a block: " + block.text(),
          {fmt::format("{} k at a time: of A", t.k_step),
           fmt::format("{} x {}, of B {} x {}", block.rows, t.k_step, t.k_step, block.columns),
           fmt::format("{} warps of {} threads", warps.size(), t.threads / int(warps.size()))});
}

void draw_warp(Svg& svg, const Area& warp, const std::vector<Area>& its, const Areas& lanes) {
    const double scale = std::min(280 / double(warp.columns), 160 / double(warp.rows)), x = 410;
    const Frame frame{warp, x, top + strip + gap, scale};
    for (const auto& [lane, areas] : lanes)
        for (const Area& area : areas) {
            const Box box = frame.box(area);
            svg.rect(box, lane == 0 ? thread_role : warp_role,
                     lane == 0 ? "lane 0: " + area.text() : "");
            svg.outline(box);
            const std::string name = fmt::format("{}", lane);
            if (&area == &areas[0] && box.height > 12 && box.width > text_width(name, 12))
                svg.label(box, name, {.size = 12, .role = Role::on_fill});
        }
    const int64_t rows = lines(its, &Area::row, &Area::rows),
                  columns = lines(its, &Area::column, &Area::columns);
    words(svg, x, fmt::format("a warp: {} x {}", rows, columns),
          {fmt::format("{} lanes, by number", lanes.size()),
           fmt::format("for each k: {} numbers of A, {} of B", rows, columns),
           fmt::format("for {} multiply-adds", elements(its))});
}

void draw_thread(Svg& svg, const std::vector<Area>& its) {
    const int64_t rows = lines(its, &Area::row, &Area::rows),
                  columns = lines(its, &Area::column, &Area::columns);
    const double scale = 120 / double(std::max({rows, columns, int64_t(8)})), x = 724;
    const Box c = {x + 20, top + strip + gap, scale * double(columns), scale * double(rows)};
    shape(svg, {c.x - gap - 16, c.y, 16, c.height}, a_role);
    shape(svg, {c.x, c.y - gap - 16, c.width, 16}, b_role);
    svg.rect(c, thread_role, fmt::format("thread: {} x {}", rows, columns));
    for (int64_t row = 0; row <= rows; ++row)
        svg.line({c.x, c.y + scale * double(row)}, {c.right(), c.y + scale * double(row)});
    for (int64_t column = 0; column <= columns; ++column)
        svg.line({c.x + scale * double(column), c.y}, {c.x + scale * double(column), c.bottom()});
    words(svg, x, fmt::format("a thread: {} x {}", rows, columns),
          {its.size() == 1
               ? format_count(elements(its), "sum") + " in registers"
               : fmt::format("{} sums: {} of {}", elements(its), its.size(), its[0].text()),
           fmt::format("for each k: {} + {} numbers", rows, columns),
           "for " + format_count(elements(its), "multiply-add")});
}

}  // namespace

void draw_tiles(const std::string& directory, const Kernel& kernel, const Tiling& t) {
    const Area all{0, 0, t.M, t.N};
    const Areas blocks = areas_of(all, [&](int64_t r, int64_t c) { return t.owner(r, c).block; });
    if (blocks.at(0).size() != 1)
        user_error("--svg: a block's part of C is no rectangle in {}", kernel.name);
    const Area block = blocks.at(0)[0];
    const Areas warps =
        areas_of(block, [&](int64_t r, int64_t c) { return t.owner(r, c).thread / 32; });
    const Area warp = around(warps.at(0));
    const Areas lanes = areas_of(warp, [&](int64_t r, int64_t c) {
        const int thread = t.owner(r, c).thread;
        return thread < 32 ? thread : -1;
    });
    Svg svg(
        900, 440, fmt::format("{}: who computes what of C = A B", kernel.name),
        fmt::format(
            "From left to right ever smaller parts of C: a block's ({}), a warp's ({} elements), "
            "a thread's ({} elements), each with what it needs of A and B. A block "
            "brings {} of K at a time.",
            block.text(), elements(warps.at(0)), elements(lanes.at(0)), t.k_step));
    svg.text(20, 52,
             "Seen while the CPU executed the kernel. Each level brings a number once, and uses it "
             "for all that lies inside.",
             {.size = 13});
    double x = 20;
    for (const auto& [role, name] : {std::pair(a_role, "of A"),
                                     {b_role, "of B"},
                                     {block_role, "a block"},
                                     {warp_role, "a warp"},
                                     {thread_role, "a thread"}}) {
        shape(svg, {x, 66, 22, 14}, role);
        svg.text(x + 28, 78, name, {.size = 13});
        x += 46 + text_width(name, 13);
    }
    draw_memory(svg, t, block, blocks);
    draw_block(svg, t, block, warps);
    draw_warp(svg, warp, warps.at(0), lanes);
    draw_thread(svg, lanes.at(0));
    write_picture(directory, "tiles.svg", svg);
}

}  // namespace ultrascale::kernels
