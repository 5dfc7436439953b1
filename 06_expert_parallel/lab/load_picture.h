// --svg: draws the experts' shares of all choices over the steps of a run, loads.svg, for the first
// layer with experts.
#pragma once

#include <fmt/format.h>

#include "../4_balance.h"
#include "lab/pictures/charts.h"

namespace ultrascale::expert_parallel {

inline void draw_loads(const std::string& directory, const std::vector<StepLoads>& loads) {
    if (!draws(directory)) return;
    const size_t E = loads.front().by_layer.front().size(), bands = std::min<size_t>(E, 8);
    std::vector<std::vector<double>> columns;
    double most = 0;
    for (const StepLoads& step : loads) {
        const std::vector<float>& load = step.by_layer.front();
        double all = 0;
        for (float n : load) all += double(n);
        std::vector<double> shares(bands, 0.0);
        for (size_t e = 0; e < E; ++e) shares[e * bands / E] += double(load[e]) / all;
        for (float n : load) most = std::max(most, double(n) / all);
        columns.push_back(shares);
    }
    Svg svg(900, 400, "Who gets the tokens: the load of the experts",
            fmt::format("Over {}, the share of all choices that each expert gets in the first "
                        "layer with experts. Even would be {:.3f} each; the largest was {:.3f}.",
                        format_count(int64_t(loads.size()), "step"), 1 / double(E), most));
    const Axis across = {0, double(loads.size()), 90, 880}, up = {0, 1, 340, 110};
    const auto percent = [](double share) { return fmt::format("{:.0f} %", 100 * share); };
    draw_axis_beside(svg, up, across.begin, across.end, {0, 0.25, 0.5, 0.75, 1}, percent);
    std::vector<Meaning> layers;
    for (size_t i = 0; i < bands; ++i) {
        const size_t first = (i * E + bands - 1) / bands, next = ((i + 1) * E + bands - 1) / bands;
        layers.push_back({role_of_rank(int(i)), next == first + 1
                                                    ? fmt::format("expert {}", first)
                                                    : fmt::format("{} to {}", first, next - 1)});
    }
    draw_stacked_areas(svg, across, up, columns, layers);
    draw_legend(svg, 90, 80, layers);
    draw_axis_below(svg, across, up.begin, ticks(double(loads.size()), 8),
                    [](double step) { return fmt::format("{:.0f}", step); });
    svg.text(485, 385, "step", {.anchor = Text::middle, .size = 13});
    write_picture(directory, "loads.svg", svg);
}

}  // namespace ultrascale::expert_parallel
