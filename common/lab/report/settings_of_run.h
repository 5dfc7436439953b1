// The settings with which the page's formulas of memory begin.
#pragma once

#include "lab/options/cli.h"
#include "lab/predict/memory_formulas.h"

namespace ultrascale {

// Returns what a run's options say of the table's settings; the axes follow from its layout. A
// schedule that the table does not have becomes 1F1B; layers that recompute differently become like
// the first one.
inline MemorySettings settings_of_run(const StepShape& shape, const Options& options) {
    MemorySettings settings;
    settings.set(shape);
    settings.m = double(options.grad_accum), settings.sp = 0;
    for (const auto& [name, value] : options.values) {
        const auto* number = std::get_if<int64_t>(&value);
        const auto* word = std::get_if<std::string>(&value);
        if (number && (name == "--zero" || name == "--stage")) settings.zero = double(*number);
        if (number && name == "--chunks" && *number > 0) settings.chunks = double(*number);
        if (name == "--sequence-parallel") settings.sp = value == JsonValue(true);
        if (word && name == "--schedule")
            settings.schedule = *word == "afab" ? 0 : *word == "interleaved" ? 2 : 1;
    }
    return settings;
}

}  // namespace ultrascale
