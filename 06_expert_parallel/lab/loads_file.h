// The file of --save-loads and --loads: a line for each layer with experts, in each the number of
// rows of each of its experts.
#pragma once

#include <cmath>
#include <sstream>

#include "../4_balance.h"
#include "files/file.h"

namespace ultrascale::expert_parallel {

// Writes the sums over all steps.
inline void write_loads(const std::string& path, const std::vector<StepLoads>& steps) {
    std::string text;
    for (size_t l = 0; l < steps.front().by_layer.size(); ++l)
        for (size_t e = 0, E = steps.front().by_layer[l].size(); e < E; ++e) {
            double sum = 0;
            for (const StepLoads& step : steps) sum += double(step.by_layer[l][e]);
            text += fmt::format("{:.0f}{}", sum, e + 1 < E ? " " : "\n");
        }
    write_file(path, text);
}

// Throws UserError if the file has not E loads, of which one is not 0, for each of `layers` layers.
inline std::vector<std::vector<float>> read_loads(const std::string& path, int64_t layers,
                                                  int64_t E) {
    const MappedFile file(path);
    std::istringstream lines{std::string(file.text())};
    std::vector<std::vector<float>> loads;
    for (std::string line; std::getline(lines, line);) {
        std::vector<float> load;
        std::istringstream numbers(line);
        for (float n; numbers >> n && std::isfinite(n) && n >= 0;) load.push_back(n);
        if (!numbers.eof() || int64_t(load.size()) != E || std::ranges::max(load) == 0)
            user_error("{}: line {}: not the loads of {}", path, loads.size() + 1,
                       format_count(E, "expert"));
        loads.push_back(std::move(load));
    }
    if (int64_t(loads.size()) != layers)
        user_error("{}: it has the loads of {}, and {} of this model have experts", path,
                   format_count(int64_t(loads.size()), "layer"), layers);
    return loads;
}

}  // namespace ultrascale::expert_parallel
