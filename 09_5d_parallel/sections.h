// What only this program's report has: the axes and the links that they cross; and --estimate.
#pragma once

#include "options.h"
#include "predict.h"
#include "train/run.h"

namespace ultrascale {

// Which axes have neighbours on other nodes. (What they send is in the report's communication, by
// group of ranks.)
inline void print_axes(Report& report, const Techniques& techniques, int node_size) {
    const Axes& axes = techniques.axes;
    print(fmt::format("\naxes, neighbours first{:9}ranks   rank + {:6}{}", "", "",
                      node_size > 0 ? fmt::format("on other nodes of {}", node_size) : ""));
    for (const std::string& axis : axes.order) {
        if (axes.size(axis) == 1) continue;
        std::string line =
            fmt::format("  {:<29}{:>5}   {:>6}", axis, axes.size(axis), axes.stride(axis));
        JsonFields row{{"table", "axes"},
                       {"axis", axis},
                       {"ranks", int64_t(axes.size(axis))},
                       {"stride", int64_t(axes.stride(axis))}};
        if (node_size > 0) {
            const double away = axes.between_nodes(axis, node_size);
            line += fmt::format("{:>20.0f} % of neighbours", 100 * away);
            row.emplace_back("between_nodes", away);
        }
        print(line);
        report.row(row);
    }
}

inline constexpr const char* needs_less =
    "more ranks along any axis, --zero 3 or --recompute full need less";

// --estimate: parameters are only described; nothing is allocated.
inline void print_estimate(const Options& options, const Techniques& techniques,
                           const StepShape& shape) {
    Composition all(options, shape, techniques);
    const int64_t replicas = all.share().count;
    Report report("09_5d_parallel", options, shape, 0);
    report.configuration(sequences_of_step(options, replicas), "", replicas);
    report.technique("layout", describe(techniques), layout_of(techniques.axes));
    report.estimate(predict(all), 1, needs_less);
    print_axes(report, techniques, options.node_size);
    report.finish();
}

}  // namespace ultrascale
