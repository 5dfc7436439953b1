// --svg: timelines.svg shows what --compare ran and when, ring.svg shows the ring all-reduce of
// --demo collectives step by step.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "collectives_demo.h"
#include "core/trace.h"
#include "lab/pictures/charts.h"
#include "syncs.h"

namespace ultrascale::data_parallel {

// A step of each technique as rank 0's trace recorded it: the computation, with the simultaneous
// communication below it.
class Timelines {
public:
    // Chooses a step from the trace, which contains only the technique's steps: the one that took
    // as long as the median. The figures are the table's.
    void add(SyncKind kind, const std::string& name, double step_seconds, double exposed_seconds) {
        constexpr const char* ways[] = {"all-reduces after the backward",
                                        "an all-reduce as soon as a gradient is complete",
                                        "fewer and larger all-reduces, during the backward"};
        Variant variant{.name = name,
                        .way = ways[int(kind)],
                        .step_ms = 1e3 * step_seconds,
                        .exposed_ms = 1e3 * exposed_seconds};
        const auto [begin, end] = step_nearest_to(step_seconds);
        variant.length_ms = 1e3 * (end - begin);
        for (const Span& span : trace_spans()) {
            if (span.begin < begin || span.end > end) continue;
            const double from = 1e3 * (span.begin - begin), to = 1e3 * (span.end - begin);
            const std::string hint = fmt::format("{}, {:.2f} ms", full_name(span), to - from);
            if (span.ranks > 1)
                variant.communication.push_back({Role::communication, from, to, hint});
            else if (span.lane == "phase" && span.name == "forward")
                variant.computation.push_back({Role::forward, from, to, hint, "forward"});
            else if (span.lane == "phase" && span.name == "backward")
                variant.computation.push_back({Role::backward, from, to, hint, "backward"});
            else if (span.lane == "phase" && span.name == "wait for gradients")
                variant.computation.push_back({Role::exposed, from, to, hint, "waits"});
            else if (span.lane == "phase" &&
                     (span.name == "update" || span.name == "gradient norm"))
                variant.computation.push_back({Role::update, from, to, hint});
        }
        variants_.push_back(std::move(variant));
    }

    void draw(const std::string& directory) const {
        constexpr double top = 100, pitch = 112, lane = 30;
        const double bottom = top + pitch * double(variants_.size());
        double longest = 0;
        for (const Variant& v : variants_) longest = std::max(longest, v.length_ms);
        std::string figures;
        for (const Variant& v : variants_) figures += v.name + ": " + v.in_words() + ". ";
        Svg svg(900, bottom + 40, "The same step with three ways to sum the gradients",
                "For each way one step of rank 0, computation above communication. " + figures);
        svg.text(20, 52,
                 "Communication during the backward is hidden. What is left after it makes "
                 "computation wait.",
                 {.size = 13});
        draw_legend(svg, 20, 66,
                    {{Role::forward, "forward"},
                     {Role::backward, "backward"},
                     {Role::update, "norm, update"},
                     {Role::communication, "all-reduce"},
                     {Role::exposed, "exposed: computation waits for communication"}});
        const Axis across = {0, longest, 150, 880};
        double y = top;
        for (const Variant& v : variants_) {
            svg.text(20, y + 16, v.name, {.bold = true});
            svg.text(across.begin, y + 16, v.way);
            svg.text(across.end, y + 16, v.in_words(), {.anchor = Text::end});
            svg.text(across.begin - 8, y + 44, "computation", {.anchor = Text::end, .size = 13});
            svg.text(across.begin - 8, y + 78, "communication", {.anchor = Text::end, .size = 13});
            draw_lane(svg, across, y + 24, lane, v.computation);
            draw_lane(svg, across, y + 24 + lane + 4, lane, v.communication);
            y += pitch;
        }
        draw_axis_below(svg, across, bottom - 4, ticks(longest, 8),
                        [](double ms) { return fmt::format("{:g} ms", ms); });
        write_picture(directory, "timelines.svg", svg);
    }

private:
    struct Variant {
        std::string name, way;
        double step_ms, exposed_ms;  // the table's figures
        double length_ms = 0;        // the drawn step's
        std::vector<Stretch> computation = {}, communication = {};
        std::string in_words() const {
            return fmt::format("step {:.1f} ms, exposed {:.1f} ms", step_ms, exposed_ms);
        }
    };
    // From the beginning of a forward to the end of the update that follows it.
    static std::pair<double, double> step_nearest_to(double seconds) {
        std::pair<double, double> nearest = {0, INFINITY};
        double begin = 0;
        std::vector<Span> phases;
        for (const Span& span : trace_spans())
            if (span.lane == "phase" && (span.name == "forward" || span.name == "update"))
                phases.push_back(span);
        std::ranges::sort(phases, {}, &Span::begin);
        const auto off = [&](double length) { return std::abs(length - seconds); };
        for (const Span& span : phases) {
            if (span.name == "forward")
                begin = span.begin;
            else if (off(span.end - begin) < off(nearest.second - nearest.first))
                nearest = {begin, span.end};
        }
        return nearest;
    }
    std::vector<Variant> variants_;
};

// Rows are moments, columns are ranks. A chunk is a box with as many parts as there are ranks; a
// part is filled when that rank's part is in the sum, according to the demo's tensors.
inline void draw_ring(const std::string& directory, const RingHistory& history) {
    if (directory.empty()) return;
    const int n = int(history[0].values.size());
    constexpr double left = 215, top = 130, row = 62, box_height = 26;
    const double pitch = (890 - left) / n, chunk = (pitch - 40) / n;
    Svg svg(900, top + row * double(history.size()) + 10,
            fmt::format("Ring all-reduce on {} ranks", n),
            fmt::format("Each rank's {0} chunks before the first and after each of {1} steps. In "
                        "{2} steps of the reduce-scatter what arrives is added, until each rank "
                        "has one finished chunk; in {2} steps of the all-gather the finished "
                        "chunks go round.",
                        n, 2 * (n - 1), n - 1));
    svg.text(20, 52,
             "Every rank sends one chunk to the right in every step. A chunk is full when all "
             "ranks' parts are in its sum.",
             {.size = 13});
    std::vector<Meaning> parts;
    for (int r = 0; r < n; ++r)
        parts.push_back({role_of_rank(r),
                         n <= 5 ? fmt::format("part of rank {}", r) : fmt::format("rank {}", r)});
    draw_legend(svg, 20, 64, parts);
    const auto box = [&](size_t moment, int rank, int c) {
        return Box{left + rank * pitch + c * chunk, top + double(moment) * row, chunk - 4,
                   box_height};
    };
    for (int r = 0; r < n; ++r) {
        svg.text(box(0, r, 0).x + n * chunk / 2, top - 24, fmt::format("rank {}", r),
                 {.anchor = Text::middle, .bold = true});
        for (int c = 0; c < n; ++c)
            svg.text(box(0, r, c).center().x, top - 6, fmt::format("c{}", c),
                     {.anchor = Text::middle, .size = 12});
    }
    for (size_t m = 0; m < history.size(); ++m) {
        const auto& [values, step] = history[m];
        const bool adds = step.phase == RingStep::reduce_scatter;
        const double y = box(m, 0, 0).y;
        svg.text(20, y + 12,
                 m == 0 ? "start"
                        : fmt::format("{} {} of {}", adds ? "reduce-scatter" : "all-gather",
                                      step.step + 1, n - 1),
                 {.bold = true});
        const bool last = step.step == n - 2;
        svg.text(20, y + 28,
                 m == 0         ? "each chunk: own part only"
                 : adds && last ? "added: one full chunk each"
                 : adds         ? "what arrives is added"
                 : last         ? "stored: all are full"
                                : "what arrives is stored",
                 {.size = 12});
        for (int r = 0; r < n; ++r) {
            std::istringstream words(values[size_t(r)]);
            std::string value;
            for (int c = 0; c < n && words >> value; ++c) {
                const Box b = box(m, r, c);
                for (int of = 0; of < n; ++of)  // the last digit is rank 0's
                    if (value[size_t(n - 1 - of)] == '1')
                        svg.rect({b.x + of * b.width / n, b.y, b.width / n, b.height},
                                 role_of_rank(of), fmt::format("c{} of rank {}: {}", c, r, value));
                const bool arrived = m > 0 && c == (step.received + r) % n;
                svg.outline(b, {.width = arrived ? 3.0 : 0.75});
                if (!arrived) continue;
                // An arrow comes from the chunk's place one row above and one rank to the left. At
                // the end of the ring it leaves on the right and enters on the left.
                const Point to = {b.center().x, b.y - 2};
                const double from_y = b.y - row + box_height + 2;
                const Line style = {.width = 1.5};
                if (r > 0) {
                    svg.arrow({{to.x - pitch, from_y}, to}, style);
                } else {
                    const double slope = (to.y - from_y) / pitch;
                    const double begin = left - 12, end = 896, start = to.x + (n - 1) * pitch;
                    svg.arrow({{begin, to.y - slope * (to.x - begin)}, to}, style);
                    svg.line({start, from_y}, {end, from_y + slope * (end - start)}, style);
                }
            }
        }
    }
    write_picture(directory, "ring.svg", svg);
}

}  // namespace ultrascale::data_parallel
