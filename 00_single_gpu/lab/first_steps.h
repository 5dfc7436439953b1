// Why the first step differs from the others, and why a run that does not fit may die only in the
// second step: the first update allocates AdamW's states. By then the first step's activations have
// been freed, so step 2 is the first to hold activations and states at the same time.
#pragma once

#include <algorithm>

#include "memory_anatomy.h"

namespace ultrascale::single_gpu {

// Prints the highest moment of each of the first steps, and its consequence for a smaller device.
inline void print_first_steps(Report& report, const StepTimeline& timeline) {
    const std::vector<MemoryByCategory> highest = timeline.highest_by_step();
    const std::vector<double> ends = timeline.ends();
    print("\nthe highest moment of a step");
    print(fmt::format("  {:<6} {:>10} {:>12} {:>12} {:>12} {:>12} {:>12}", "step", "ms", "all",
                      "parameters", "gradients", "optimizer", "activations"));
    for (size_t s = 0; s < highest.size(); ++s) {
        std::string line = fmt::format("  {:<6} {:>10.1f} {:>12}", s + 1,
                                       1e3 * (ends[s] - (s == 0 ? 0 : ends[s - 1])),
                                       format_bytes(double(total(highest[s]))));
        for (Memory category :
             {Memory::parameter, Memory::gradient, Memory::optimizer, Memory::activation})
            line += fmt::format(" {:>12}", format_bytes(double(highest[s][size_t(category)])));
        print(line);
        report.value("first_steps", fmt::format("step_{}_bytes", s + 1), double(total(highest[s])));
    }
    if (highest.size() < 2 || total(highest[0]) >= total(highest[1])) return;
    print(
        fmt::format("  A device of {} would end a run in step 1, one of {} only in step 2: the\n"
                    "  states appear in the first update, when the activations have gone.",
                    format_bytes(0.99 * double(total(highest[0]))),
                    format_bytes(0.99 * double(total(highest[1])))));
}

// --fresh-grads: prints the largest sum of activations and gradients in the first steps, beside its
// prediction. Returns whether they agree.
inline bool print_fresh_gradients(Report& report, const StepShape& shape, int64_t predicted) {
    int64_t measured = 0;
    for (const MemoryPoint& point : memory_timeline())
        measured = std::max(measured, point.bytes[size_t(Memory::activation)] +
                                          point.bytes[size_t(Memory::gradient)]);
    const MemoryEstimate kept = estimate_memory(shape);
    const bool same = peak_as_predicted(predicted, measured);
    print(fmt::format("\nactivations and gradients together, at most: {} predicted, {} measured{}",
                      format_bytes(double(predicted)), format_bytes(double(measured)),
                      same ? "" : "   MISMATCH"));
    print(fmt::format("  with gradients that are there all the time: {}",
                      format_bytes(double(kept.peak_activations + kept.gradients))));
    report.value("fresh_gradients", "predicted", double(predicted));
    report.value("fresh_gradients", "measured", double(measured));
    report.value("fresh_gradients", "otherwise", double(kept.peak_activations + kept.gradients));
    return same;
}

}  // namespace ultrascale::single_gpu
