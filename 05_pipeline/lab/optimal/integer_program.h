// The orders that TaskOrder leaves open, as an integer program in CPLEX's LP format, which all
// solvers read.
//
//     minimize step
//     step - s_a >= length(a) + tail(a)
//     s_b - s_a >= length(a) + lag          for each order that is given or follows
//     s_b - s_a + M (1 - y) >= length(a)    for each open pair: y = 1 if a comes before b,
//     s_a - s_b + M' y >= length(b)         y = 0 if b comes before a
//     head(a) <= s_a <= limit - length(a) - tail(a)
//
// s_a is when task a begins. The bounds make every M as small as possible, so that the relaxation
// (0 <= y <= 1), by which a solver judges what is worth trying, is informative. Micro-batches are
// in order, so a before b implies a before a later b': y(a, b) <= y(a, b').
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>

#include "task_order.h"

namespace ultrascale::pipeline {

class IntegerProgram {
public:
    // A step that takes at least `least` and at most `limit` ticks; order.end_by(limit) must have
    // been called.
    IntegerProgram(const TaskOrder& order, int least, int limit)
        : order_(order), least_(least), limit_(limit) {
        const size_t n = order.tasks().size();
        for (size_t a = 0; a < n; ++a)
            for (size_t b = a + 1; b < n; ++b)
                if (order.open(a, b)) open_[{a, b}] = fmt::format("y{}_{}", a, b);
    }

    size_t choices() const { return open_.size(); }

    std::string text() const {
        const std::vector<TaskOrder::Task>& tasks = order_.tasks();
        std::string program =
            "\\ When each F, B and W of a pipeline begins (s...), and which of two tasks of a rank "
            "comes\n\\ first (y...), so that the step ends as soon as possible.\nMinimize\n obj: "
            "step\nSubject To\n";
        const auto add = [&](const std::string& constraint) { program += " " + constraint + "\n"; };
        for (size_t a = 0; a < tasks.size(); ++a)
            add(fmt::format("step - s{} >= {}", a, tasks[a].length + order_.tail(a)));
        for (const auto& [a, b, lag] : order_.arcs())
            add(fmt::format("s{} - s{} >= {}", b, a, tasks[a].length + lag));
        for (const auto& [pair, y] : open_) {
            const auto& [a, b] = pair;
            const int ab = tasks[a].length + latest(a) - order_.head(b),
                      ba = tasks[b].length + latest(b) - order_.head(a);
            add(fmt::format("s{} - s{} - {} {} >= {}", b, a, ab, y, tasks[a].length - ab));
            add(fmt::format("s{} - s{} + {} {} >= {}", a, b, ba, y, tasks[b].length));
        }
        for (const auto& [pair, y] : open_) {
            const auto& [a, b] = pair;
            // The next micro-batch's task of the same kind has an index larger by three.
            if (const auto later = open_.find({a, b + 3});
                later != open_.end() && same_rank(b, b + 3))
                add(fmt::format("{} - {} >= 0", later->second, y));
            if (const auto later = open_.find({a + 3, b});
                later != open_.end() && same_rank(a, a + 3))
                add(fmt::format("{} - {} >= 0", y, later->second));
        }
        program += fmt::format("Bounds\n {} <= step <= {}\n", least_, limit_);
        for (size_t a = 0; a < tasks.size(); ++a)
            program += fmt::format(" {} <= s{} <= {}\n", order_.head(a), a, latest(a));
        program += "General\n step\nBinary\n";
        for (const auto& [pair, y] : open_) program += " " + y + "\n";
        return program + "End\n";
    }

    // The ranks' lists, given when the solver lets each task begin ("s17" -> 42).
    std::vector<std::vector<Action>> actions(const std::map<std::string, double>& values) const {
        std::vector<std::pair<double, size_t>> begins;
        for (size_t a = 0; a < order_.tasks().size(); ++a) {
            const auto found = values.find(fmt::format("s{}", a));
            begins.emplace_back(found == values.end() ? 0 : found->second, a);
        }
        std::ranges::sort(begins);
        std::vector<std::vector<Action>> lists;
        for (const auto& [when, a] : begins) {
            const TaskOrder::Task& task = order_.tasks()[a];
            if (lists.size() <= size_t(task.rank)) lists.resize(size_t(task.rank) + 1);
            lists[size_t(task.rank)].push_back(task.action);
        }
        return lists;
    }

private:
    int latest(size_t a) const { return limit_ - order_.tasks()[a].length - order_.tail(a); }
    bool same_rank(size_t a, size_t b) const {
        return b < order_.tasks().size() && order_.tasks()[a].rank == order_.tasks()[b].rank;
    }

    const TaskOrder& order_;
    int least_, limit_;
    std::map<std::pair<size_t, size_t>, std::string> open_;  // each pair's variable
};

}  // namespace ultrascale::pipeline
