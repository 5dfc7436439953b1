// The papers' closed formulas for bubbles and activations, where they are exact. F, B and W are a
// rank's times for one micro-batch, D = B + W; p ranks, m micro-batches, v chunks a rank.
//
//     schedule        the step's bubble         its own            exact for       activations
//     naive           m (p-1) (F+D)             as the step's      all             1
//     afab            (p-1) (F+D)               as the step's      all             m
//     1f1b            (p-1) (F+D)               as the step's      all             min(p, m)
//     1f1b-overlap    (p-1) (F+D)               as the step's      m >= 2p         2p
//     interleaved     (p-1) (F+D)/v             as the step's      all it takes    (2p-1+(v-1)N)/v
//     breadth-first   (p-1) (F+D)/v             as the step's      m >= p          m
//     zb-h1           (p-1) (F+B-W)             as the step's      m >= p, B >= W  p
//     zb-h2           (p-1) F, or its own       (p-1) max(0,       m >= 2p-1       2p-1
//                     if that is longer         F+B-2W, B-F)
//     zbv             (p-1) F/2                 0                  m >= 2p,        p
//     dualpipe        (p/2-1) (F&B + D - 3W)    as the step's      F = B = W       p+1
//     dualpipev       (p-1)/2 (F&B + D - 3W)    as the step's                      p+1/2
//     v-half          about half of 1f1b's      as the step's      -               (p+2)/2 at most
//
// F&B is the time of a forward and a backward that run together, here their sum. Hops take no time.
// The paper's own bubble of zb-h2 is (p-1) (F+B-2W). If W > F, B-F is longer: while the first B
// comes up p-1 ranks to rank 0, that rank has only p-1 forwards to fill the time.
#pragma once

#include <algorithm>
#include <optional>
#include <string_view>

#include "../2_schedules/schedules.h"
#include "../2_schedules/simulate.h"

namespace ultrascale::pipeline {

struct Formulas {
    std::optional<double> step_bubble, own_bubble;  // where exact
    std::optional<double> peak;  // of the rank that holds most, in micro-batches, if exact
};

// Options are complete: none is 0. `cost`: of a rank's whole share of the model.
inline Formulas formulas(std::string_view name, int ranks, int micro_batches,
                         const ScheduleOptions& options, const StageCost& cost) {
    const double p = ranks, m = micro_batches, v = options.chunks, n = options.group;
    const auto [f, b, w] = cost;
    const double d = b + w;
    const bool equal = f == b && b == w, full = m >= 2 * p;
    const auto both = [](double bubble, double peak) { return Formulas{bubble, bubble, peak}; };
    if (name == "naive") return both(m * (p - 1) * (f + d), 1);
    if (name == "afab") return both((p - 1) * (f + d), m);
    if (name == "1f1b") return both((p - 1) * (f + d), std::min(p, m));
    if (name == "1f1b-overlap")
        return full ? both((p - 1) * (f + d), 2 * p) : Formulas{.peak = std::min(2 * p, m)};
    if (name == "interleaved")
        return both((p - 1) * (f + d) / v, std::min(m, (2 * p - 1 + (v - 1) * n) / v));
    if (name == "breadth-first") {
        if (m < p) return {.peak = m};
        return both((p - 1) * (f + d) / v, m);
    }
    if (name == "zb-h1") {
        if (m < p || b < w) return {.peak = std::min(p, m)};
        return both((p - 1) * (f + b - w), p);
    }
    if (name == "zb-h2") {
        const double peak = std::min(2 * p - 1, m), lost = std::max({0.0, f + b - 2 * w, b - f});
        if (m < 2 * p - 1) return {.peak = peak};
        return {(p - 1) * std::max(f, lost), (p - 1) * lost, peak};
    }
    if (name == "zbv" && full) return equal ? Formulas{(p - 1) * f / 2, 0, p} : Formulas{.peak = p};
    if (name == "dualpipe")
        return equal ? both((p / 2 - 1) * (f + d + d - 3 * w), p + 1) : Formulas{.peak = p + 1};
    if (name == "dualpipev")
        return equal ? both((p - 1) / 2 * (f + d + d - 3 * w), p + 0.5) : Formulas{.peak = p + 0.5};
    return {};
}

}  // namespace ultrascale::pipeline
