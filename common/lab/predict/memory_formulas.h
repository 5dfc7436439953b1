// What a rank of any layout holds, by the table of formulas in memory_formulas.inc: for --demo
// memory of chapter 00, and for the page with sliders that --html writes. The programs' own
// predictions (activations.h, and each chapter's lab/predict.h) know more; a test compares the two.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/step_shape.h"

namespace ultrascale {

// The settings: L, h, a, ... with the table's defaults.
struct MemorySettings {
#define SETTING(group, name, value, choices, what) double name = value;
#include "memory_formulas.inc"

    // Sets "h=8192,tp=8". Throws UserError for a name that is no setting, or a value that is no
    // number.
    void set(const std::string& text);
    void set(const std::string& name, double value);
    // Sets what a shape says about the model and its micro-batch.
    void set(const StepShape& shape);
    void set(const LlamaConfig& config);

    // The table's functions.
    static double max(auto... values) { return std::max({double(values)...}); }
    static double min(auto... values) { return std::min({double(values)...}); }
    static double floor(double value) { return std::floor(value); }
    static double mod(double value, double by) { return value - by * std::floor(value / by); }
};

// All formulas for these settings, computed in the table's order when one is made.
struct MemoryFormulas : MemorySettings {
    explicit MemoryFormulas(const MemorySettings& settings) : MemorySettings(settings) {}
#define FORMULA(unit, name, what, ...) double name = __VA_ARGS__;
#include "memory_formulas.inc"
};

// Returns why there is no such layout, in a sentence; if there is one, nothing.
std::string why_refused(const MemorySettings& settings);

// The table's formulas as text, with their values.
struct FormulaRow {
    std::string unit, name, what, expression;
    double value;
};
std::vector<FormulaRow> formula_rows(const MemorySettings& settings);

// The table, presets of models and number formats, and `start`, as JSON for lab/page/memory.js.
std::string memory_page_data(const MemorySettings& start);

// DeepSeek-V3, whose latent attention is represented by attention with as many weights (heads of
// 102 numbers).
LlamaConfig deepseek_v3_by_formula();

}  // namespace ultrascale
