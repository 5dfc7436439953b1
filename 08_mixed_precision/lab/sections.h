// The parts of the report that only this chapter has: the recipe's bytes beside the playbook's, the
// distance of the first gradient from fp32's, the loss scale; and --estimate's report.
#pragma once

#include "predict.h"
#include "reference.h"
#include "train/run.h"

namespace ultrascale::mixed_precision {

inline const char* products_name(Products products) {
    const char* const names[] = {"as the activations",
                                 "e4m3, a scale a tensor",
                                 "e4m3, a delayed scale a tensor",
                                 "e4m3, a scale a row",
                                 "e4m3, a scale for each 1 x 128 and 128 x 128",
                                 "e4m3, a power of two for each 32, emulated in bf16",
                                 "e2m1, an e4m3 scale for each 16, emulated in bf16"};
    return names[int(products)];
}
inline std::string format_name(const std::optional<DType>& dtype) {
    return dtype ? dtype_name(*dtype) : "-";
}
inline std::string describe_tricks(const Nvfp4Tricks& tricks) {
    std::string words;
    for (const auto& [has, name] : {std::pair{tricks.hadamard, "Hadamard"},
                                    {tricks.stochastic, "stochastic gradients"},
                                    {tricks.square, "square blocks"},
                                    {tricks.last_layers, "last layers in bf16"}})
        if (has) words += (words.empty() ? "" : ", ") + std::string(name);
    return words.empty() ? "without tricks" : words;
}
inline std::string describe(const PrecisionOptions& o) {
    const Recipe& r = o.recipe;
    std::string words =
        fmt::format("{}: weights {}, master {}, sums {}, gradients {}, moments {} and {}", r.name,
                    dtype_name(r.weights), format_name(r.master), format_name(r.accumulated),
                    format_name(r.gradients), dtype_name(r.m), dtype_name(r.v));
    words += fmt::format("\n          products {}", products_name(r.products));
    const auto add = [&](const std::string& more) {
        const bool fits = words.size() - words.rfind('\n') + more.size() < 98;
        words += (fits ? "; " : ";\n          ") + more;
    };
    if (r.plain) add("by plain linears");
    if (r.fp8() && r.products != Products::nvfp4)
        add(fmt::format("gradients {}", dtype_name(o.gradient_format)));
    if (!r.round_up) add("scales as OCP's");
    if (r.products == Products::nvfp4) add(describe_tricks(r.nvfp4));
    if (r.fp8() && o.head_fp8) add("the head so, too");
    if (o.unfused) add("unfused");
    if (o.keep_fp8) add("inputs kept so");
    if (o.smooth) add("SwiGLU smoothed");
    if (r.stochastic) add("updates rounded stochastically");
    if (o.loss_scale.scaled)
        add(o.loss_scale.fixed > 0 ? fmt::format("loss scale {:g}", o.loss_scale.fixed)
                                   : "loss scale dynamic");
    return words;
}

inline double first_loss_scale(const PrecisionOptions& o) {
    return !o.loss_scale.scaled     ? 1
           : o.loss_scale.fixed > 0 ? o.loss_scale.fixed
                                    : o.loss_scale.start;
}

inline std::string what_needs_less() {
    return "a smaller --micro-batch, --seq or --model, or a recipe of fewer bytes would";
}

// Reports how far the formats moved the first gradient. All ranks call it; rank 0 has the
// reference.
inline bool report_formats(Report& report, const Recipe& recipe, const MixedReference* reference) {
    const double away = reference ? reference->away_from_fp32() : -1, bound = format_bound(recipe);
    const bool ok = away <= bound;  // false for NaN
    if (away >= 0 || std::isnan(away)) {
        print(fmt::format("  formats   {:<34} {:>9.2e} <= {:.1e}  {:<9}  {}",
                          "step 1, gradient away from fp32's", away, bound, "fixed",
                          ok ? "ok" : "MISSED"));
        report.value("verify", "away_from_fp32", away);
    }
    return Communicator::world().broadcast_string(ok ? "ok" : "missed", 0) == "ok";
}

// Reports the recipe's bytes a parameter.
inline void report_bytes(Report& report, const StepShape& shape, const PrecisionOptions& o) {
    const Recipe& r = o.recipe;
    const MemoryEstimate m = predict_memory(shape, o).memory;
    const double N = double(parameter_count(shape.config)),
                 all = double(m.parameters + m.gradients + m.optimizer);
    print(fmt::format(
        "  a parameter{} takes {} bytes{}, on average {:.3f} with scales",
        r.fp8() ? " of a linear" : "", bytes_per_parameter(r),
        r.book_bytes > 0 ? fmt::format(" (the playbook's table: {:g})", r.book_bytes) : "",
        all / N));
    report.value("recipe", "bytes_per_parameter", double(bytes_per_parameter(r)));
    report.value("recipe", "bytes_per_parameter_in_all", all / N);
}

// Reports what the format's codes and scales of the products' operands would take, x, W and dy of
// each layer's four products, and what their emulation does.
inline void report_blocks(Report& report, const StepShape& shape, const Recipe& r) {
    if (!r.blocks()) return;
    const LlamaConfig& c = shape.config;
    const int64_t layers = c.layers - layers_in_bf16(r, c.layers), h = c.hidden, F = c.ffn,
                  qkv = c.q_size() + 2 * c.kv_size(), tokens = shape.micro_batch * shape.seq;
    int64_t weights = 0, others = 0;
    for (const auto& [out, in] : {std::pair{qkv, h}, {h, c.q_size()}, {2 * F, h}, {h, F}})
        weights += layers * out * in, others += layers * tokens * (out + in);
    const bool nvfp4 = r.products == Products::nvfp4;
    const auto format = nvfp4 ? ops::BlockFormat::nvfp4 : ops::BlockFormat::mx_e4m3;
    const auto square = nvfp4 && r.nvfp4.square ? ops::BlockShape::square : ops::BlockShape::row;
    const double bytes = (double(others) * ops::block_bits(format) +
                          double(weights) * ops::block_bits(format, square)) /
                         8;
    print(fmt::format("  x, W and dy of {} in {} would take {}; emulated in bf16 they take {}",
                      format_count(layers, "layer"), r.name, format_bytes(bytes),
                      format_bytes(2.0 * double(weights + others))));
    report.value("blocks", "format_bytes", bytes);
    report.value("blocks", "emulated_bytes", 2.0 * double(weights + others));
}

// Reports the loss scale and the steps that it cost.
inline void report_loss_scale(Report& report, const LossScale& scale, int64_t steps) {
    if (!scale.scaled()) return;
    std::string which;
    for (size_t i = 0; i < scale.skipped().size(); ++i)
        which += i < 8    ? fmt::format("{}{}", i > 0 ? ", " : ": ", scale.skipped()[i])
                 : i == 8 ? ", ..."
                          : "";
    print(fmt::format("\nloss scale: {:g} in the end; {} of {} skipped{}", scale.scale(),
                      scale.skipped().size(), format_count(steps, "step"), which));
    report.value("loss_scale", "last", scale.scale());
    report.value("loss_scale", "skipped", double(scale.skipped().size()));
}

// Reports on gradients that ranks summed in 8 bits.
inline void report_fp8_sum(Report& report, const MixedTraining& training, int ranks) {
    if (ranks == 1 || !is_fp8(training.options.recipe.read())) return;
    print(
        fmt::format("\ngradients summed in e4m3: factor {:.4g} in the end; {:.4f} % of the sums "
                    "were at 448",
                    training.fp8_sum.factor(ranks), 100 * training.fp8_sum.saturated()));
    report.value("fp8_sum", "factor", training.fp8_sum.factor(ranks));
    report.value("fp8_sum", "saturated", training.fp8_sum.saturated());
}

// Prints the table of the recipes for this model, by formula.
inline void print_recipes(Report& report, const StepShape& shape, PrecisionOptions o) {
    print("\nbytes by recipe");
    print(
        "  recipe     weights master accumulated gradients m    v     a parameter  book     in "
        "all");
    for (const Recipe& r : all_recipes()) {
        o.recipe = r;
        o.loss_scale.scaled = r.loss_scale;
        StepShape recipe_shape = shape;
        recipe_shape.model.dtype = r.activations;
        if (!r.fp8()) o.keep_fp8 = o.smooth = o.head_fp8 = false;
        const MemoryEstimate m = predict_memory(recipe_shape, o).memory;
        const int64_t all = m.parameters + m.gradients + m.optimizer;
        print(fmt::format(
            "  {:<10} {:<7} {:<6} {:<11} {:<9} {:<4} {:<5} {:>11}  {:>4} {:>10}", r.name,
            dtype_name(r.weights), format_name(r.master), format_name(r.accumulated),
            format_name(r.gradients), dtype_name(r.m), dtype_name(r.v), bytes_per_parameter(r),
            r.book_bytes > 0 ? fmt::format("{:g}", r.book_bytes) : "", format_bytes(double(all))));
        report.row({{"recipe", r.name},
                    {"bytes_per_parameter", bytes_per_parameter(r)},
                    {"held_bytes", all}});
    }
}

inline void print_estimate(const Options& options, const PrecisionOptions& precision,
                           const StepShape& shape) {
    const Communicator& world = Communicator::world();
    const Mesh mesh(world, {{"dp", world.size()}});
    Fp8Linears linears(precision);
    ModuleFactories factories = default_factories(shape.config, shape.model);
    linears.add_to(factories, shape.config.layers);
    Llama model(shape.config, shape.model, factories, Stage::whole(shape.config));
    Report report("08_mixed_precision", options, shape, 0);
    report.configuration(sequences_of_step(options, world.size()), "");
    report.technique("recipe", describe(precision), {{"dp", world.size()}});
    report.estimate(
        predict(shape, precision, model.parameters(), linears.parameters(), mesh.group("dp")), 1,
        what_needs_less);
    print_recipes(report, shape, precision);
    report.finish();
}

}  // namespace ultrascale::mixed_precision
