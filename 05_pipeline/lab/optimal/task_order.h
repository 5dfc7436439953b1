// Which task must come before which, if a step is to end by a given time: the constraints of the
// integer program (optimal.h), and the conclusions that need no search.
//
// A task is one F, B or W. Some orders are given: a micro-batch's way through the stages, the
// micro-batches' order in each stage, and, with room for L micro-batches' activations, W of
// micro-batch k before F of micro-batch k + L. Two tasks of one rank cannot run at once, so one
// comes first. Their order must be decided, unless one of the two orders ends too late:
//
//     head(a)   when a can begin at the soonest      tail(a)   what must follow a, at least
//     a before b is impossible if head(a) + length(a) + length(b) + tail(b) > end
//
// Carlier and Pinson, "An Algorithm for Solving the Job-Shop Problem", 1989.
#pragma once

#include <algorithm>
#include <numeric>

#include "../../2_schedules/placement.h"

namespace ultrascale::pipeline {

// A pipeline of one stage a rank, in whole ticks.
struct TickCosts {
    struct Stage {
        int forward, backward_input, backward_weight;
    };
    std::vector<Stage> stages;
    int hop = 0;
};

class TaskOrder {
public:
    struct Task {
        int rank;
        Action action;
        int length;
    };

    // `room`: how many micro-batches' activations a rank can hold.
    TaskOrder(const TickCosts& costs, int micro_batches, int room)
        : micro_batches_(micro_batches), ranks_(int(costs.stages.size())) {
        for (int r = 0; r < ranks_; ++r)
            for (int m = 0; m < micro_batches; ++m) {
                const auto& [f, b, w] = costs.stages[size_t(r)];
                tasks_.push_back({r, {ActionKind::forward, m}, f});
                tasks_.push_back({r, {ActionKind::backward_input, m}, b});
                tasks_.push_back({r, {ActionKind::backward_weight, m}, w});
            }
        before_.assign(tasks_.size() * tasks_.size(), 0);
        heads_.assign(tasks_.size(), 0), tails_.assign(tasks_.size(), 0);
        for (int r = 0; r < ranks_; ++r)
            for (int m = 0; m < micro_batches; ++m) {
                put(f(r, m), b(r, m), 0), put(b(r, m), w(r, m), 0);
                if (r + 1 < ranks_) {
                    put(f(r, m), f(r + 1, m), costs.hop);
                    put(b(r + 1, m), b(r, m), costs.hop);
                }
                if (m + 1 < micro_batches)
                    for (const auto of : {&TaskOrder::f, &TaskOrder::b, &TaskOrder::w})
                        put((this->*of)(r, m), (this->*of)(r, m + 1), 0);
                if (m + room < micro_batches) put(w(r, m), f(r, m + room), 0);
            }
    }

    const std::vector<Task>& tasks() const { return tasks_; }
    int head(size_t a) const { return heads_[a]; }
    int tail(size_t a) const { return tails_[a]; }
    bool before(size_t a, size_t b) const { return before_[a * tasks_.size() + b]; }
    // Whether the order of two tasks of one rank is open.
    bool open(size_t a, size_t b) const {
        return a != b && tasks_[a].rank == tasks_[b].rank && !before(a, b) && !before(b, a);
    }
    // An order of two tasks, of one rank or two, with the least number of ticks between them.
    struct Arc {
        size_t from, to;
        int lag;
    };
    const std::vector<Arc>& arcs() const { return arcs_; }

    // Draws all conclusions from the step's end. Returns false if it cannot end so early.
    bool end_by(int end) {
        for (bool changed = true; changed;) {
            changed = false;
            if (!times(end)) return false;
            for (size_t a = 0; a < tasks_.size(); ++a)
                for (size_t b = a + 1; b < tasks_.size(); ++b) {
                    if (!open(a, b)) continue;
                    const bool ab = fits(a, b, end), ba = fits(b, a, end);
                    if (!ab && !ba) return false;
                    if (ab && ba) continue;
                    ab ? put(a, b, 0) : put(b, a, 0);
                    changed = true;
                }
        }
        return true;
    }

private:
    size_t at(int rank, int m) const { return size_t(rank * micro_batches_ + m) * 3; }
    size_t f(int rank, int m) const { return at(rank, m); }
    size_t b(int rank, int m) const { return at(rank, m) + 1; }
    size_t w(int rank, int m) const { return at(rank, m) + 2; }

    bool fits(size_t a, size_t b, int end) const {
        return heads_[a] + tasks_[a].length + tasks_[b].length + tails_[b] <= end;
    }
    // Puts a before b, and so all tasks before a before all tasks after b.
    void put(size_t a, size_t b, int lag) {
        arcs_.push_back({a, b, lag});
        if (before(a, b)) return;
        const size_t n = tasks_.size();
        for (size_t x = 0; x < n; ++x)
            if (x == a || before(x, a))
                for (size_t y = 0; y < n; ++y)
                    if (y == b || before(b, y)) before_[x * n + y] = 1;
    }
    // Computes heads and tails. Returns false if a task ends too late.
    bool times(int end) {
        for (bool changed = true; changed;) {
            changed = false;
            for (const auto& [a, b, lag] : arcs_) {
                changed = raise(heads_[b], heads_[a] + tasks_[a].length + lag) || changed;
                changed = raise(tails_[a], tails_[b] + tasks_[b].length + lag) || changed;
            }
            for (size_t a = 0; a < tasks_.size(); ++a) {
                if (heads_[a] + tasks_[a].length + tails_[a] > end) return false;
                changed = raise(heads_[a], after_others(a, heads_, true)) || changed;
                changed = raise(tails_[a], after_others(a, tails_, false)) || changed;
            }
        }
        return true;
    }
    static bool raise(int& bound, int to) {
        if (to <= bound) return false;
        bound = to;
        return true;
    }
    // When a rank can at the earliest have done all tasks that come before a: they run one after
    // the other, so all tasks with a head at least as late as a given one's fit in only after that
    // head. For tails, the same seen from the end.
    int after_others(size_t a, const std::vector<int>& bounds, bool first) const {
        std::vector<std::pair<int, int>> others;  // bound, length
        const size_t begin = at(tasks_[a].rank, 0), end = at(tasks_[a].rank + 1, 0);
        for (size_t x = begin; x < end; ++x)
            if (first ? before(x, a) : before(a, x))
                others.emplace_back(bounds[x], tasks_[x].length);
        std::ranges::sort(others);
        int done = 0;
        for (const auto& [bound, length] : others) done = std::max(done, bound) + length;
        return done;
    }

    int micro_batches_, ranks_;
    std::vector<Task> tasks_;
    std::vector<char> before_;  // [a][b], with all consequences
    std::vector<Arc> arcs_;
    std::vector<int> heads_, tails_;
};

}  // namespace ultrascale::pipeline
