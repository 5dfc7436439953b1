// --playbook --svg DIR: sweep.svg, all layouts of a model on a cluster, each with the memory of its
// fullest GPU and its speed. The hull joins those that no other one beats in both.
#pragma once

#include <set>

#include "playbook.h"

namespace ultrascale::five_d::playbook {

// Returns the layouts that are faster than all that need less memory, by memory.
inline std::vector<Ranked> hull_of(std::vector<Ranked> all) {
    std::ranges::sort(all, {}, [](const Ranked& r) { return r.memory.most; });
    std::vector<Ranked> hull;
    for (const Ranked& r : all)
        if (hull.empty() || r.seconds < hull.back().seconds) hull.push_back(r);
    return hull;
}

inline void draw_sweep(const std::string& directory) {
    constexpr int64_t nodes = 4;
    const std::vector<PublishedRow> rows = playbook_rows();
    const PublishedRow& published =
        *std::ranges::find(rows, fmt::format("{:>2} x 8, 8.86B", nodes), &PublishedRow::name);
    Planner planner({.shape = published.shape,
                     .hardware = find_hardware("h100"),
                     .gpus = 8 * nodes,
                     .sequences = 256});
    const std::vector<Ranked> all = planner.plan().fit;
    const auto mfu = [&](const Ranked& r) { return 100 * planner.mfu(r); };
    const auto gb = [](const Ranked& r) { return double(r.memory.most) / 1e9; };
    std::vector<Ranked> hull = hull_of(all);
    Svg svg(900, 560,
            fmt::format("A sweep by formula: {} layouts of 8.86B on {} H100s that fit", all.size(),
                        8 * nodes),
            "Each mark is a layout: to the right what its fullest GPU holds, upwards its MFU. The "
            "upper left edge is the hull: a layout below it is beaten in memory and in speed.");
    const Panel panel =
        draw_panel(svg, {60, 96, 480, 374}, "MFU, %", "memory of the fullest GPU, GB",
                   linear_scale(80, 4), linear_scale(60, 6));
    const auto words = [&](const Ranked& r) {
        return fmt::format("{}, {} x {}: {:.1f} GB, {:.1f} %", describe(r.plan), r.plan.micro_batch,
                           r.plan.micro_batches, gb(r), mfu(r));
    };
    const auto at = [&](const Ranked& r) { return Point{panel.across(gb(r)), panel.up(mfu(r))}; };
    // Of the marks in each square of 15 pixels only the fastest layout's is drawn.
    constexpr double square = 15;
    const auto radius = [](double micro_batch) { return 2.5 + 0.6 * std::log2(micro_batch); };
    std::set<std::pair<int, int>> taken;
    for (const Ranked& r : all) {
        const Point p = at(r);
        if (!taken.emplace(int(p.x / square), int(p.y / square)).second) continue;
        const int kind = std::min(int(std::log2(double(r.plan.tp))), 3);
        draw_mark(svg, p, Mark(kind), role_of_rank(kind), words(r),
                  radius(double(r.plan.micro_batch)));
    }
    std::vector<Point> edge;
    for (const Ranked& r : hull) {
        if (!edge.empty()) edge.push_back({at(r).x, edge.back().y});
        edge.push_back(at(r));
    }
    svg.polyline(edge, {.width = 2});
    draw_mark(svg,
              {panel.across(published.memory_gb * double(1 << 30) / 1e9), panel.up(published.mfu)},
              Mark::circle, Role::ink,
              fmt::format("published: {:.1f} GiB, {:.1f} %", published.memory_gb, published.mfu), 6,
              true);
    svg.text(552, 82, "the hull: the fastest in so much memory", {.size = 13, .bold = true});
    double y = 104, named = 0;  // the MFU of the corner that was named last
    int number = 0;
    for (const Ranked& r : hull) {
        if (mfu(r) < 1.15 * named && &r != &hull.back()) continue;
        named = mfu(r), ++number;
        svg.text(at(r).x - 5, at(r).y - 6, fmt::format("{}", number),
                 {.anchor = Text::end, .size = 12, .bold = true, .halo = true});
        svg.text(552, y, fmt::format("{}  {}", number, words(r)), {.size = 12});
        y += 18;
    }
    svg.text(552, y += 16, "marks", {.size = 13, .bold = true});
    y += 8;
    constexpr const char* kinds[] = {"tp 1", "tp 2", "tp 4", "tp 8 and more"};
    for (int kind = 0; kind < 4; ++kind) {
        draw_mark(svg, {560, y += 18}, Mark(kind), role_of_rank(kind), "", radius(4));
        svg.text(574, y + 4, kinds[kind], {.size = 12});
        const int micro_batch = kind == 0 ? 1 : 2 << kind;
        draw_mark(svg, {700, y}, Mark::square, Role::rank0, "", radius(micro_batch));
        svg.text(714, y + 4,
                 fmt::format("{} in a micro-batch", format_count(micro_batch, "sequence")),
                 {.size = 12});
    }
    draw_mark(svg, {560, y += 22}, Mark::circle, Role::ink, "", 6, true);
    svg.text(574, y + 4,
             fmt::format("the playbook's best: {}, {} x {}", describe(published.plan),
                         published.plan.micro_batch, published.plan.micro_batches),
             {.size = 12});
    draw_caption(
        svg, 530,
        {fmt::format("By formula; {} of 4096 tokens a step. b x m: sequences of a micro-batch x "
                     "micro-batches.",
                     format_count(planner.what().sequences, "sequence")),
         fmt::format("Of each square of {} pixels only the fastest layout is drawn.", square)});
    write_picture(directory, "sweep.svg", svg);
}

}  // namespace ultrascale::five_d::playbook
