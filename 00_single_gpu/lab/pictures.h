// --svg: draws memory over the first four steps as a picture, memory.svg (StepTimeline's chart).
#pragma once

#include <fmt/format.h>

#include <algorithm>

#include "lab/pictures/charts.h"
#include "memory_anatomy.h"

namespace ultrascale::single_gpu {

inline void draw_memory(const std::string& directory, const StepTimeline& timeline) {
    std::vector<double> ends = timeline.ends();
    if (!draws(directory) || ends.empty()) return;
    for (double& end : ends) end *= 1e3;  // ms
    const std::vector<MemoryByCategory> held = timeline.highest_by_column(316);
    const auto lower = [](const auto& a, const auto& b) { return total(a) < total(b); };
    const auto peak = std::ranges::max_element(held, lower);
    const double highest = double(total(*peak));

    Svg svg(900, 394, "What a training step holds, and when",
            fmt::format("Memory over the first {}, stacked by category. Parameters and gradients "
                        "stay; optimizer states are there from the end of step 1; activations grow "
                        "in each forward and shrink in each backward. Peak: {}.",
                        format_count(int64_t(ends.size()), "step"), format_bytes(highest)));
    svg.text(
        20, 52,
        "Activations grow in forward and shrink in backward. Parameters, gradients and optimizer "
        "states stay.",
        {.size = 13});
    const Axis across = {0, ends.back(), 90, 880}, up = {0, 1.12 * highest, 360, 110};
    const auto in_bytes = [](double bytes) { return bytes > 0 ? format_bytes(bytes) : "0"; };
    draw_axis_beside(svg, up, across.begin, across.end, byte_ticks(highest, 5), in_bytes);

    std::vector<Meaning> layers;
    std::vector<std::vector<double>> columns(held.size());
    for (int c = 0; c < memory_categories; ++c) {
        if (is_on_host(Memory(c))) continue;  // not the device's memory
        layers.push_back({role_of(Memory(c)), memory_names[size_t(c)]});
        for (size_t t = 0; t < held.size(); ++t) columns[t].push_back(double(held[t][size_t(c)]));
    }
    draw_stacked_areas(svg, across, up, columns, layers);
    std::erase_if(layers, [](const Meaning& m) { return m.role == Role::communication; });
    draw_legend(svg, 90, 64, layers);

    // Each step's name stands above it, or beside its neighbours' names if it is too short.
    constexpr double room = 52;
    std::vector<double> names;
    for (size_t s = 0; s < ends.size(); ++s) {
        const double begin = across(s == 0 ? 0 : ends[s - 1]), end = across(ends[s]);
        svg.line({end, 94}, {end, up.begin}, {.dashed = true});
        names.push_back((begin + end) / 2);
        if (s > 0) names[s] = std::max(names[s], names[s - 1] + room);
    }
    for (size_t s = ends.size(); s-- > 0;) {
        names[s] = std::min(names[s], s + 1 < ends.size() ? names[s + 1] - room : across.end - 26);
        svg.text(names[s], 104, fmt::format("step {}", s + 1),
                 {.anchor = Text::middle, .bold = true});
    }
    // In the middle of the first step, or beside the axis if that step is short.
    const double in_first = std::max((across.begin + across(ends[0])) / 2, across.begin + 86);
    svg.text(in_first, up(highest) + 16, "no optimizer states yet",
             {.anchor = Text::middle, .size = 13, .halo = true});
    const double peak_x = across.begin + (double(peak - held.begin()) + 0.5) / double(held.size()) *
                                             (across.end - across.begin);
    svg.text(std::min(peak_x, 780.0), up(highest) - 7, "peak " + format_bytes(highest),
             {.anchor = Text::middle, .bold = true, .halo = true});
    draw_axis_below(svg, across, up.begin, ticks(ends.back(), 8),
                    [](double ms) { return fmt::format("{:g} ms", ms); });
    write_picture(directory, "memory.svg", svg);
}

}  // namespace ultrascale::single_gpu
