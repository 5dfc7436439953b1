// --demo memory: what a rank of any layout holds, by common/lab/predict/memory_formulas.inc, with
// the numbers of each formula. With --html the page has the formulas with sliders, with --json a
// row for each layout.
#pragma once

#include "lab/predict/memory_formulas.h"
#include "lab/report/report.h"
#include "options.h"

namespace ultrascale::single_gpu {

inline void print_memory_formulas(const MemorySettings& settings) {
    const MemoryFormulas f(settings);
    print("\n                       by this table   the book's");
    const auto line = [](const char* what, double ours, double book) {
        print(fmt::format("  {:<18} {:>15}{}", what, format_bytes(ours),
                          book < 0 ? "" : fmt::format("  {:>11}", format_bytes(book))));
    };
    line("parameters", f.parameters, f.book_parameters);
    line("gradients", f.gradients, f.book_gradients);
    line("optimizer states", f.states, f.book_states);
    line("activations, kept", f.activations, f.book_activations);
    line("operation at work", f.work, -1);
    line("ZeRO's buffers", f.buffers, -1);
    line("at most", f.total, f.book_total);
    print("");
    for (const FormulaRow& row : formula_rows(settings))
        print(wrapped(fmt::format("  {} = {} = {:.10g}{}{}", row.name, row.expression, row.value,
                                  row.unit.empty() ? "" : " " + row.unit,
                                  row.what.empty() ? "" : " (" + row.what + ")")));
}

// `texts`: settings in addition to those that the options name, for several layouts parted by
// semicolons. One that is refused is a UserError if it is alone, otherwise a row that says why.
inline void demo_memory(const Options& options, const std::string& texts) {
    const StepShape shape = step_shape(options, options.config());
    Report report("00_single_gpu", options, shape, 0);
    for (size_t at = 0; at <= texts.size();) {
        const size_t end = std::min(texts.find(';', at), texts.size());
        const std::string text = texts.substr(at, end - at);
        MemorySettings settings;
        settings.set(shape);
        settings.m = double(options.grad_accum);
        settings.set(text);
        if (at == 0) report.formulas(settings);
        JsonFields row{{"table", "memory_formulas"}, {"settings", text}};
        if (const std::string refused = why_refused(settings); !refused.empty()) {
            if (text == texts) user_error("--settings {}: {}", text, refused);
            print("\n" + refused);
            row.emplace_back("refused", refused);
        } else {
            print_memory_formulas(settings);
            for (const FormulaRow& formula : formula_rows(settings))
                row.emplace_back(formula.name, formula.value);
        }
        report.row(row);
        at = end + 1;
    }
    report.finish();
}

}  // namespace ultrascale::single_gpu
