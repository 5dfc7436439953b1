// Shows where a wrong gradient is wrong: compares the first step's gradient with the plain
// training's, by groups of parameters with the same role. A sum that was omitted, or made twice,
// shows as a factor.
#pragma once

#include "lab/report/report.h"
#include "whole_values.h"

namespace ultrascale {

class GradientGroups {
public:
    GradientGroups() = default;
    GradientGroups(const Reference::Values& plain, const std::vector<Comparison>& tensors);
    // Prints a line for each group and adds it to the report: the run's share of the plain
    // gradient, (g . plain) / (plain . plain), which should be 1; and the relative error.
    void print(Report& report) const;

private:
    std::map<std::string, Comparison> groups_;  // by role: "self_attn.q_proj", "experts.w1"
};

}  // namespace ultrascale
