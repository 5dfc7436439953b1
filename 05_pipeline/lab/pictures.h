// --svg: a simulated schedule above the same schedule as it ran, on one time scale; below them, how
// many micro-batches' activations each rank holds.
//
// A colour is a micro-batch (after eight they repeat), and a rank's chunks lie one below the other.
// A bar and, if there is room, a word show the kind of action:
//
//     F   no bar       B   a bar below      W   a bar above      D   both
#pragma once

#include <algorithm>

#include "core/memory.h"
#include "drawing.h"
#include "lab/pictures/charts.h"

namespace ultrascale::pipeline {

class SchedulePicture {
public:
    // `measured` may be empty: then the picture has one timeline.
    SchedulePicture(const Schedule& schedule, const Simulation& simulated,
                    const Simulation& measured)
        : schedule_(schedule), simulated_(simulated), measured_(measured) {
        for (const Simulation* timeline : {&simulated, &measured})
            if (!timeline->ranks.empty())
                until_ = std::max(until_, last_end(*timeline) - first_begin(*timeline));
        for (const auto& rank_chunks : schedule.chunks)
            chunks_ = std::max(chunks_, int(rank_chunks.size()));
        for (const auto& actions : schedule.actions)
            pairs_ = pairs_ || std::ranges::any_of(actions, &Action::with_next);
    }

    Svg draw() const {
        const bool both = !measured_.ranks.empty();
        const double timeline = pitch() * schedule_.ranks() + 66;
        const double chart = 122 + timeline * (both ? 2 : 1), height = chart + chart_height + 96;
        Svg svg(900, height,
                fmt::format("{}: {}, {}", schedule_.name, format_count(schedule_.ranks(), "rank"),
                            format_count(schedule_.micro_batches, "micro-batch")),
                description());
        legend(svg, 50);
        lanes(svg, 130, "as simulated", simulated_);
        if (both) lanes(svg, 130 + timeline, "as it ran", measured_);
        activations(svg, chart + 20, both ? measured_ : simulated_,
                    both ? "activations held, as it ran" : "activations held, as simulated");
        return svg;
    }

private:
    static constexpr double left = 74, right = 880, chart_height = 110;
    double lane() const {
        if (chunks_ == 1 && pairs_) return 34;  // a pair's actions lie one below the other
        return chunks_ == 1 ? 22 : 34.0 / std::min(chunks_, 2) * chunks_;
    }
    double pitch() const { return lane() + 5; }
    Axis across() const { return {0, until_, left, right}; }

    std::string description() const {
        std::string words;
        const auto add = [&](const char* how, const Simulation& timeline) {
            if (timeline.ranks.empty()) return;
            words += fmt::format("{}{}: {}, the step's bubble {}, the longest own bubble {}.",
                                 words.empty() ? "" : " ", how, time_words(timeline.seconds),
                                 time_words(timeline.mean_step_bubble()),
                                 time_words(timeline.worst_own_bubble()));
        };
        add("Simulated", simulated_);
        add("Measured", measured_);
        return words;
    }

    void legend(Svg& svg, double y) const {
        double x = 20;
        const auto sample = [&](ActionKind kind, const char* words) {
            const Box box = {x, y, 30, 18};
            cell(svg, box, {kind, 0}, "");
            svg.label(box, std::string(1, char(kind)), {.size = 12, .role = Role::on_fill});
            svg.text(box.right() + 6, y + 14, words, {.size = 13});
            x = box.right() + 6 + text_width(words, 13) + 18;
        };
        bool used[256] = {};
        for (const auto& rank_actions : schedule_.actions)
            for (const Action& action : rank_actions) used[size_t(action.kind)] = true;
        sample(ActionKind::forward, "forward");
        if (used['D']) sample(ActionKind::backward, "backward");
        if (used['B']) sample(ActionKind::backward_input, "backward of inputs");
        if (used['W']) sample(ActionKind::backward_weight, "backward of weights");
        svg.text(20, y + 38,
                 fmt::format("A colour is a micro-batch{}.",
                             chunks_ > 1 ? "; a rank's chunks lie one below the other" : ""),
                 {.size = 13});
    }

    static void cell(Svg& svg, const Box& box, const Action& action, const std::string& hint) {
        svg.rect(box, role_of_rank(action.micro_batch), hint);
        if (box.width < 1.5) return;
        const double bar = 3;
        if (sends_back(action.kind))
            svg.rect({box.x, box.bottom() - bar, box.width, bar}, Role::on_fill);
        if (frees(action.kind)) svg.rect({box.x, box.y, box.width, bar}, Role::on_fill);
        if (box.width > 3) svg.outline(box, {.width = 0.5});
    }

    void lanes(Svg& svg, double y, const char* how, const Simulation& timeline) const {
        const double first = first_begin(timeline);
        svg.text(20, y - 8,
                 fmt::format("{}: {}; the step's bubble {}, the longest own bubble {}", how,
                             time_words(last_end(timeline) - first),
                             time_words(timeline.mean_step_bubble()),
                             time_words(timeline.worst_own_bubble())),
                 {.size = 13, .bold = true});
        const double row = lane() / chunks_;
        for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
            const double top = y + pitch() * double(rank);
            svg.text(left - 8, top + lane() / 2 + 5, fmt::format("rank {}", rank),
                     {.anchor = Text::end, .size = 13});
            svg.outline({left, top, right - left, lane()}, {.role = Role::faint, .width = 0.5});
            const TimedAction* before = nullptr;
            for (const TimedAction& timed : timeline.ranks[rank]) {
                const double begin = across()(timed.begin - first),
                             end = across()(timed.end - first);
                Box box = {begin, top + row * timed.action.chunk, std::max(end - begin, 0.25), row};
                // Two that run together share the row of their chunk.
                const bool second = before && before->action.with_next;
                if (second || timed.action.with_next) {
                    const TimedAction& other = second ? *before : *(&timed + 1);
                    if (other.action.chunk == timed.action.chunk)
                        box.height /= 2, box.y += second ? box.height : 0;
                }
                before = &timed;
                const std::string name = to_string(schedule_, int(rank), timed.action);
                cell(svg, box, timed.action,
                     fmt::format("{} {}: {} to {}", how, name, time_words(timed.begin - first),
                                 time_words(timed.end - first)));
                for (const std::string& words :
                     {to_string(timed.action, false), std::to_string(timed.action.micro_batch)})
                    if (text_width(words, 12) + 2 < box.width) {
                        svg.label(box, words, {.size = 12, .role = Role::on_fill});
                        break;
                    }
            }
        }
        const double below = y + pitch() * schedule_.ranks();
        draw_axis_below(svg, across(), below, ticks(until_, 8),
                        [](double t) { return time_words(t); });
    }

    // Draws stairs for each rank: up where a forward begins, down where a D or W has ended.
    void activations(Svg& svg, double y, const Simulation& timeline, const char* title) const {
        const double first = first_begin(timeline);
        double most = 0;
        for (const double peak : timeline.peak_in_flight) most = std::max(most, peak);
        const Axis up = {0, std::max(most, 1e-9), y + chart_height, y};
        svg.text(20, y - 14, std::string(title) + ", in micro-batches", {.size = 13, .bold = true});
        draw_axis_beside(svg, up, left, right, ticks(most, 4),
                         [](double held) { return fmt::format("{:g}", held); });
        draw_axis_below(svg, across(), up.begin, ticks(until_, 8),
                        [](double t) { return time_words(t); });
        double x = left, line = y + chart_height + 44;
        for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
            std::vector<std::pair<double, int>> changes;  // time, chunks
            for (const TimedAction& timed : timeline.ranks[rank]) {
                if (timed.action.kind == ActionKind::forward) changes.push_back({timed.begin, 1});
                if (frees(timed.action.kind)) changes.push_back({timed.end, -1});
            }
            std::ranges::sort(changes);
            std::vector<Point> stairs = {{across()(0), up(0)}};
            int held = 0;
            for (const auto& [when, by] : changes) {
                stairs.push_back({across()(when - first), stairs.back().y});
                held += by;
                stairs.push_back(
                    {stairs.back().x, up(double(held) * schedule_.ranks() / schedule_.stages)});
            }
            const Line style = {
                .role = role_of_rank(int(rank)), .width = 2, .dashed = rank % 2 == 1};
            svg.polyline(stairs, style);
            const std::string words =
                fmt::format("rank {}: at most {:.3g}", rank, timeline.peak_in_flight[rank]);
            const double width = 34 + text_width(words, 12) + 14;
            if (x + width > right) x = left, line += 18;
            svg.line({x, line}, {x + 26, line}, style);
            svg.text(x + 32, line + 4, words, {.size = 12});
            x += width;
        }
    }

    const Schedule& schedule_;
    const Simulation &simulated_, &measured_;
    double until_ = 0;
    int chunks_ = 1;
    bool pairs_ = false;
};

// Writes `directory`/`name` (--svg); writes nothing if the directory is empty.
inline void draw_schedule(const std::string& directory, const std::string& name,
                          const Schedule& schedule, const Simulation& simulated,
                          const Simulation& measured = {}) {
    if (!draws(directory)) return;
    write_picture(directory, name, SchedulePicture(schedule, simulated, measured).draw());
}

}  // namespace ultrascale::pipeline
