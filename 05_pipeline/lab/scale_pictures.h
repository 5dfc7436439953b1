// --simulate with --svg: schedules.svg shows each schedule's bubble and memory; scaling.svg shows
// the playbook's figures: how the bubble grows with ranks and shrinks with micro-batches and
// chunks.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "lab/pictures/charts.h"

namespace ultrascale::pipeline {

// The sizes that the playbook's figures show.
inline constexpr int scale_ranks[] = {1, 2, 4, 8, 16, 32};
inline constexpr int few_micro_batches = 7, many_micro_batches = 32;
inline constexpr int interleaved_chunks[] = {1, 2, 4, 8};
inline constexpr int interleaved_micro_batches[] = {8, 16, 32, 64};

struct ScheduleBar {
    std::string name;
    double step_bubble, own_bubble;  // relative to a rank's work
    double peak;                     // in micro-batches
};

inline void draw_schedules(const std::string& directory, const std::vector<ScheduleBar>& bars,
                           int ranks, int micro_batches) {
    constexpr double top = 126, pitch = 40;
    double widest = 0, most = 0;
    std::string figures;
    for (const ScheduleBar& bar : bars) {
        widest = std::max(widest, bar.step_bubble), most = std::max(most, bar.peak);
        figures += fmt::format("{}: bubble {:.1f} % of the work, {:g} micro-batches held. ",
                               bar.name, 100 * bar.step_bubble, bar.peak);
    }
    Svg svg(900, top + pitch * double(bars.size()) + 16,
            fmt::format("Pipeline schedules on {} ranks, {} micro-batches", ranks, micro_batches),
            figures);
    svg.text(20, 52,
             "A schedule with a small bubble, or with few activations, is easy; both together is "
             "what the later ones are about.",
             {.size = 13});
    draw_legend(svg, 20, 66,
                {{Role::exposed, "the step's bubble"},
                 {Role::update, "a rank's own bubble, where no barrier ends the step"},
                 {Role::activations, "activations"}});
    const Axis bubble = {0, std::max(widest, 1e-9), 130, 430}, held = {0, most, 570, 800};
    svg.text(bubble.begin, top - 14, "bubble / work", {.bold = true});
    svg.text(held.begin, top - 14, "activations, in micro-batches", {.bold = true});
    double y = top;
    for (const ScheduleBar& bar : bars) {
        svg.text(20, y + 18, bar.name, {.bold = true});
        const auto percent = [](double part) { return fmt::format("{:.1f} %", 100 * part); };
        const double end = draw_stacked_bar(
            svg, bubble, y, 15,
            {{Role::exposed, bar.step_bubble, bar.name + ", step: " + percent(bar.step_bubble)}});
        svg.text(end + 8, y + 12, percent(bar.step_bubble), {.size = 12});
        const double own = draw_stacked_bar(
            svg, bubble, y + 16, 11,
            {{Role::update, bar.own_bubble, bar.name + ", own: " + percent(bar.own_bubble)}});
        svg.text(own + 8, y + 27, percent(bar.own_bubble), {.size = 12});
        const double right = draw_stacked_bar(
            svg, held, y, 27,
            {{Role::activations, bar.peak, fmt::format("{}, held: {:g}", bar.name, bar.peak)}});
        svg.text(right + 8, y + 18, fmt::format("{:g}", bar.peak), {.size = 13});
        y += pitch;
    }
    svg.line({bubble.begin, top - 6}, {bubble.begin, y - 6});
    svg.line({held.begin, top - 6}, {held.begin, y - 6});
    write_picture(directory, "schedules.svg", svg);
}

// `efficiency` of (ranks, micro-batches, chunks): the share of a step for which a rank works.
inline void draw_scaling(const std::string& directory,
                         const std::function<double(int, int, int)>& efficiency) {
    constexpr double top = 100, bottom = 340;
    Svg svg(900, 400, "The bubble over ranks, micro-batches and chunks",
            fmt::format("Left: 1F1B's efficiency falls with the number of ranks; at 32 ranks it is "
                        "{:.0f} % with 7 micro-batches and {:.0f} % with 32. Right: interleaved "
                        "on 8 ranks; the bubble shrinks with micro-batches and with chunks.",
                        100 * efficiency(32, few_micro_batches, 1),
                        100 * efficiency(32, many_micro_batches, 1)));
    const auto percent = [](double part) { return fmt::format("{:.0f} %", 100 * part); };
    // Draws a curve through equally spaced columns.
    const auto curve = [&](const Axis& across, const Axis& up, const std::vector<double>& figures,
                           const Line& style, Mark mark, const std::string& name) {
        Curve curve{.name = name, .line = style, .mark = mark};
        for (size_t i = 0; i < figures.size(); ++i)
            curve.figures.push_back({double(i), figures[i]});
        draw_curve(svg, {across, up}, curve,
                   [](Point at) { return fmt::format("{:.2f} %", 100 * at.y); });
    };

    const Axis ranks = {0, double(std::size(scale_ranks) - 1), 70, 350}, part = {0, 1, bottom, top};
    svg.text(40, 70, "1F1B: work / step", {.bold = true});
    draw_axis_beside(svg, part, ranks.begin - 14, ranks.end + 14, {0, 0.25, 0.5, 0.75, 1}, percent);
    draw_axis_below(svg, ranks, bottom, {0, 1, 2, 3, 4, 5},
                    [](double i) { return fmt::format("{}", scale_ranks[size_t(i)]); });
    svg.text((ranks.begin + ranks.end) / 2, bottom + 44, "ranks p", {.anchor = Text::middle});
    std::vector<double> few, many;
    for (const int p : scale_ranks) {
        few.push_back(efficiency(p, few_micro_batches, 1));
        many.push_back(efficiency(p, many_micro_batches, 1));
    }
    curve(ranks, part, few, {.role = role_of_rank(1), .width = 2.5, .dashed = true}, Mark::diamond,
          "m = 7");
    curve(ranks, part, many, {.role = Role::rank0, .width = 2.5}, Mark::square, "m = 32");
    svg.text(ranks(2) - 40, part(few[2]) + 22, "m = 7", {.size = 13, .halo = true});
    svg.text(ranks(3) + 6, part(many[3]) - 10, "m = 32", {.size = 13, .halo = true});

    const Axis batches = {0, double(std::size(interleaved_micro_batches) - 1), 510, 790},
               lost = {0, 1, bottom, top};
    svg.text(480, 70, "interleaved on 8 ranks: bubble / work", {.bold = true});
    draw_axis_beside(svg, lost, batches.begin - 14, batches.end + 14, {0, 0.25, 0.5, 0.75, 1},
                     percent);
    draw_axis_below(svg, batches, bottom, {0, 1, 2, 3}, [](double i) {
        return fmt::format("{}", interleaved_micro_batches[size_t(i)]);
    });
    svg.text((batches.begin + batches.end) / 2, bottom + 44, "micro-batches m",
             {.anchor = Text::middle});
    for (size_t c = 0; c < std::size(interleaved_chunks); ++c) {
        std::vector<double> figures;
        for (const int m : interleaved_micro_batches)
            figures.push_back(1 / efficiency(8, m, interleaved_chunks[c]) - 1);
        curve(batches, lost, figures,
              {.role = role_of_rank(int(c)), .width = 2.5, .dashed = c % 2 == 1}, Mark(c),
              fmt::format("v = {}", interleaved_chunks[c]));
        svg.text(batches(0) + 8, lost(figures[0]) - 8,
                 fmt::format("v = {}{}", interleaved_chunks[c], c == 0 ? " (1F1B)" : ""),
                 {.size = 13, .halo = true});
    }
    write_picture(directory, "scaling.svg", svg);
}

}  // namespace ultrascale::pipeline
