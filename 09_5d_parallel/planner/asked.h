// Translates the command line of --plan and --explain-layout into the planner's terms.
#pragma once

#include "../lab/options.h"
#include "planner.h"

namespace ultrascale::five_d {

// Returns the hardware that --hardware names, for the dtype of the training. --node-size and
// --inter-gbps divide the ranks into other nodes, with other cards between them. If the machine was
// measured, they can only make links slower, as in a run on it.
inline Hardware asked_hardware(const PlannerOptions& planner, const Options& options) {
    const Hardware named = find_hardware(planner.hardware);
    Hardware h = named.in(options.dtype);
    if (options.device_memory_gib > 0)
        h.memory = options.device_memory_gib * double(int64_t(1) << 30) / PlanFor::share_of_tensors;
    if (options.inter_gbps == 0) return h;
    h.nodes.ranks = h.nodes.cards = options.node_size;
    const double rate = options.inter_gbps * 1e9 / 8;
    const bool measured = named.fp32_peak == 0;  // no preset
    for (double* between : {&h.between.bytes_per_second, &h.between.reduced_per_second})
        *between = measured ? std::min(*between, rate) : rate;
    return h;
}

// The sizes given on the command line, which are therefore not searched.
inline Fixed asked_fixed(const Options& options, const Techniques& t) {
    Fixed fixed;
    const auto fix = [&](const char* name, auto& to, int64_t value) {
        if (options.given(name)) to = value;
    };
    fix("--dp", fixed.dp, t.axes.dp), fix("--tp", fixed.tp, t.axes.tp);
    fix("--cp", fixed.cp, t.axes.cp), fix("--ep", fixed.ep, t.axes.ep);
    fix("--pp", fixed.pp, t.axes.pp);
    fix("--micro-batch", fixed.micro_batch, options.micro_batch);
    fix("--grad-accum", fixed.micro_batches, options.grad_accum);
    if (options.given("--zero")) fixed.zero = t.zero.stage;
    if (options.given("--chunks")) fixed.chunks = t.sizes.chunks;
    if (options.given("--schedule")) fixed.interleaved = t.schedule == "interleaved";
    if (options.given("--recompute")) fixed.recompute = options.recompute;
    return fixed;
}

// Throws UserError for options that no formula of the planner has.
inline void check_known(const Options& options, const Techniques& t) {
    if (t.schedule != "1f1b" && t.schedule != "interleaved")
        user_error("--schedule {}: the planner knows 1f1b and interleaved", t.schedule);
    if (t.experts.overlap != ExpertOverlap::none && t.experts.overlap != ExpertOverlap::batches)
        user_error("--ep-overlap: the planner knows none and batches");
    options.refuse_recompute_by_layer();
    if (options.recompute == Recompute::selective)
        user_error(
            "--recompute selective: attention in tiles, which the planner plans with, keeps no T x "
            "T matrix; none or full");
}

// Returns why a run with these options would refuse the layout, or "".
inline std::string why_refused(const Options& given, const StepShape& model_shape,
                               const Techniques& t, const Plan& plan) {
    Options options = given;
    options.micro_batch = plan.micro_batch, options.grad_accum = plan.micro_batches;
    options.recompute = plan.recompute;
    StepShape shape = model_shape;
    shape.micro_batch = plan.micro_batch, shape.model.recompute = plan.recompute;
    try {
        Techniques techniques = plan.techniques();
        techniques.precision = t.precision;
        complete(techniques.tensor, options.recompute);
        check_combination(options, techniques, shape);
    } catch (const UserError& refused) {
        return refused.what();
    }
    return "";
}

// Returns a plan that applies the techniques as the options say.
inline Plan alike(const Techniques& t) {
    Plan plan{.bucket = t.bucket_mb * 1048576,
              .context = t.context,
              .tensor = t.tensor,
              .experts = t.experts,
              .states = t.zero};
    for (size_t i = 0; i < plan.order.size(); ++i)
        plan.order[i] =
            PlanAxis(std::ranges::find(axis_names, t.axes.order[i]) - axis_names.begin());
    return plan;
}

// Returns the question that --plan or --explain-layout asks. Throws UserError for techniques, a
// dtype or a recipe that no formula has.
inline PlanFor asked(const PlannerOptions& planner, const Options& options, const StepShape& shape,
                     const Techniques& techniques) {
    check_known(options, techniques);
    const Recipe& recipe = techniques.precision.recipe;
    PlanFor what{.shape = shape,
                 .hardware = asked_hardware(planner, options),
                 .fp8 = recipe.fp8(),
                 .like = alike(techniques)};
    if (planner.plan) what.like.tensor.sequence_parallel = true;  // it comes with tp
    if (what.fp8 && what.hardware.fp8_times == 0)
        user_error("--recipe {}: {} has no products in fp8", recipe.name, what.hardware.name);
    if (what.fp8 && shape.config.experts.count > 0)
        user_error("--recipe {}: products of experts, in groups, are not in fp8", recipe.name);
    if (planner.gpus > 0) what.gpus = planner.gpus;
    if (!planner.batch_tokens.empty())
        what.sequences = std::max<int64_t>(1, tokens_of(planner.batch_tokens) / shape.seq);
    what.refused = [=](const Plan& plan) { return why_refused(options, shape, techniques, plan); };
    return what;
}

}  // namespace ultrascale::five_d
