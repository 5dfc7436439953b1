// A timeline in the terminal: two lines a rank, its actions and their micro-batches.
//
//     rank 0   FFFFFFFF............DDDDFFDDDDFF      a column is a moment; dots: the rank is idle
//              00112233............00004411115       the last digit of the micro-batch
//
// Letters are capital for a rank's first chunk and small for its second, and so on in turn. Two
// actions that run together alternate.
#pragma once

#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "../2_schedules/simulate.h"

namespace ultrascale::pipeline {

// When a timeline begins: 0 if it was simulated, the clock's time if it was measured.
inline double first_begin(const Simulation& timeline) {
    double first = std::numeric_limits<double>::infinity();
    for (const auto& rank_actions : timeline.ranks)
        if (!rank_actions.empty()) first = std::min(first, rank_actions.front().begin);
    return std::isfinite(first) ? first : 0;
}
inline double last_end(const Simulation& timeline) {
    double last = 0;
    for (const auto& rank_actions : timeline.ranks)
        for (const TimedAction& timed : rank_actions) last = std::max(last, timed.end);
    return last;
}

inline std::string time_words(double time) {
    return time >= 1 || time == 0 ? fmt::format("{:.3g} s", time)
           : time >= 1e-3         ? fmt::format("{:.3g} ms", time * 1e3)
                                  : fmt::format("{:.3g} us", time * 1e6);
}

// The drawing's lines, none longer than 100 columns. `until` is the time that the whole width
// represents, so that two timelines can be compared; 0: as long as this one takes.
inline std::vector<std::string> draw_timeline(const Simulation& timeline, double until = 0,
                                              int columns = 88) {
    const double first = first_begin(timeline);
    if (until <= 0) until = last_end(timeline) - first;
    std::vector<std::string> lines;
    for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
        const std::vector<TimedAction>& ran = timeline.ranks[rank];
        std::string kinds, digits;
        size_t at = 0;
        for (int column = 0; column < columns; ++column) {
            const double now = first + until * (column + 0.5) / columns;
            while (at < ran.size() && ran[at].end <= now) ++at;
            if (at == ran.size()) break;
            if (ran[at].begin > now) {
                kinds += '.', digits += ' ';
                continue;
            }
            const bool turn = at + 1 < ran.size() && ran[at + 1].begin <= now && column % 2 == 1;
            const Action& action = ran[at + turn].action;
            const char letter = char(action.kind);
            kinds += action.chunk % 2 == 0 ? letter : char(std::tolower(letter));
            digits += char('0' + action.micro_batch % 10);
        }
        lines.push_back(fmt::format("rank {:<4} {}", rank, kinds));
        digits.erase(digits.find_last_not_of(' ') + 1);
        lines.push_back(fmt::format("{:9} {}", "", digits));
        if (digits.empty()) lines.back().clear();
    }
    return lines;
}

// The meaning of the letters and the length of a column, to be printed below a drawing.
inline std::string timeline_legend(const Schedule& schedule, double until, int columns = 88) {
    bool whole = false, apart = false, chunks = false;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        chunks = chunks || schedule.chunks[size_t(rank)].size() > 1;
        for (const Action& action : schedule.actions[size_t(rank)]) {
            whole = whole || action.kind == ActionKind::backward;
            apart = apart || action.kind == ActionKind::backward_input;
        }
    }
    return fmt::format("F forward{}{}{}; below: micro-batch; column: {}",
                       whole ? ", D backward" : "", apart ? ", B of inputs, W of weights" : "",
                       chunks ? "; f: 2nd chunk" : "", time_words(until / columns));
}

}  // namespace ultrascale::pipeline
