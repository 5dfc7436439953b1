// --playbook --svg DIR: step.svg, the anatomy of a step in three magnifications: all stages of a
// pipeline, one micro-batch's passes on one of them, and the parts of one layer.
#pragma once

#include "playbook.h"

namespace ultrascale::five_d::playbook {

// The layout of the picture: Llama-3-70B on 256 GPUs.
inline const Plan anatomy_plan{.dp = 8, .tp = 8, .pp = 4, .zero = 1, .micro_batches = 8};

inline void draw_step(const std::string& directory) {
    const StepShape shape = shape_of("llama-3-70b", 8192);
    const Hardware hardware = find_hardware("h100");
    const Plan& plan = anatomy_plan;
    Planner planner({.shape = shape,
                     .hardware = hardware,
                     .gpus = plan.ranks(),
                     .sequences = plan.sequences()});
    const Ranked r = planner.one(plan);
    const pipeline::Simulation passes = planner.simulated(plan);
    const auto ms = [](double seconds) { return fmt::format("{:.1f} ms", 1e3 * seconds); };
    Svg svg(900, 556,
            fmt::format("The anatomy of a step: Llama-3-70B on {} H100s, {}", plan.ranks(),
                        describe(plan)),
            fmt::format("By formula. A step takes {}; its passes, the sums of gradients and the "
                        "optimizer follow each other. Below: one micro-batch on the first stage, "
                        "and the parts of a layer.",
                        ms(r.seconds)));

    // The step: what each stage does when.
    const Axis step{0, r.seconds, 90, 870};
    svg.text(20, 62, "a step: the four stages", {.size = 13, .bold = true});
    constexpr double lane = 24;
    for (size_t rank = 0; rank < passes.ranks.size(); ++rank) {
        const double y = 72 + (lane + 4) * double(rank);
        svg.text(80, y + 17, fmt::format("stage {}", rank), {.anchor = Text::end, .size = 12});
        draw_lane(svg, step, y, lane, {{Role::exposed, 0, passes.seconds, "bubble"}});
        std::vector<Stretch> done;
        for (const pipeline::TimedAction& timed : passes.ranks[rank]) {
            const bool forward = timed.action.kind == pipeline::ActionKind::forward;
            done.push_back(
                {forward ? Role::forward : Role::backward, timed.begin, timed.end,
                 fmt::format("stage {} {} {}: {}", rank, forward ? "forward" : "backward",
                             timed.action.micro_batch, ms(timed.end - timed.begin)),
                 fmt::format("{}", timed.action.micro_batch)});
        }
        const double summed = passes.seconds + r.cost.data;
        done.push_back({Role::gradients, passes.seconds, summed, "sums: " + ms(r.cost.data)});
        done.push_back({Role::update, summed, r.seconds, "optimizer: " + ms(r.cost.optimizer)});
        draw_lane(svg, step, y, lane, done);
    }
    const double under = 72 + (lane + 4) * double(passes.ranks.size());
    draw_axis_below(svg, step, under, ticks(r.seconds, 7),
                    [](double s) { return fmt::format("{:g} ms", 1e3 * s); });
    draw_legend(svg, 90, under + 32,
                {{Role::forward, "forward"},
                 {Role::backward, "backward"},
                 {Role::exposed, "bubble"},
                 {Role::gradients, "sums: " + ms(r.cost.data)},
                 {Role::update, "optimizer: " + ms(r.cost.optimizer)}});

    // One micro-batch's forward on the first stage, layer by layer.
    const LayerCosts costs(shape, hardware, plan);
    const Stage& stage = planner.memory().stages(plan).front();
    const UnitCost layer = costs.layer(false), embedding = costs.embedding();
    const pipeline::TimedAction& first = passes.ranks[0][0];
    const Axis pass{0, first.end - first.begin, 90, 870};
    const double y2 = under + 98;
    svg.text(20, y2 - 8,
             fmt::format("forward of micro-batch 0 on stage 0: the embedding and {} layers, {}",
                         stage.last_layer, ms(pass.to)),
             {.size = 13, .bold = true});
    std::vector<Stretch> units = {{Role::communication, 0, embedding.forward.all(),
                                   "embedding: " + ms(embedding.forward.all())}};
    for (int64_t l = 0; l < stage.last_layer; ++l) {
        const double begin = units.back().end;
        units.push_back({Role::forward, begin, begin + layer.forward.all(),
                         fmt::format("layer {}: {}", l, ms(layer.forward.all())),
                         fmt::format("{}", l)});
    }
    draw_lane(svg, pass, y2, lane, units);

    // One layer, part by part.
    double y3 = y2 + 90;
    const double longest = std::max(layer.forward.all(), layer.backward.all());
    const Axis within{0, longest, 90, 870};
    svg.line({pass(units[10].begin), y2 + lane}, {within.begin, y3}, {.dashed = true});
    svg.line({pass(units[10].end), y2 + lane}, {within(layer.forward.all()), y3}, {.dashed = true});
    for (const bool forward : {true, false}) {
        const auto pass_of = [&](const UnitCost& c) { return forward ? c.forward : c.backward; };
        svg.text(80, y3 + 18, forward ? "forward" : "backward", {.anchor = Text::end, .size = 12});
        std::vector<Stretch> parts;
        std::string words;
        double at = 0;
        costs.for_each_part(false, [&](const char* name, const UnitCost& cost) {
            const PassCost c = pass_of(cost);
            if (c.all() == 0) return;
            const std::string part = name;
            const Role role = c.tensor > 0                                   ? Role::communication
                              : part == "attention"                          ? role_of_rank(4)
                              : part.starts_with("norm") || part == "SwiGLU" ? Role::workspace
                                                                             : role_of_rank(2);
            parts.push_back(
                {role, at, at + c.all(),
                 fmt::format("{} {}: {}", name, forward ? "forward" : "backward", ms(c.all())),
                 name});
            words += fmt::format("{}{} {:.2f}", words.empty() ? "" : "; ", name, 1e3 * c.all());
            at += c.all();
        });
        draw_lane(svg, within, y3, lane + 4, parts);
        svg.text(90, y3 + lane + 20, words + " ms", {.size = 12});
        y3 += lane + 40;
    }
    svg.text(20, y2 + 74, "one layer", {.size = 13, .bold = true, .halo = true});
    draw_legend(svg, 90, y3,
                {{role_of_rank(2), "products"},
                 {role_of_rank(4), "attention"},
                 {Role::workspace, "limited by memory"},
                 {Role::communication, "tp: gathers and scatters, not hidden"}});
    svg.text(20, y3 + 40,
             fmt::format(
                 "By formula: {} of {} tokens, MFU {:.1f} %. The bubble is {:.0f} % of the work; "
                 "(p-1)/m, for equal stages, is {:.0f} %.",
                 format_count(plan.sequences(), "sequence"), shape.seq, 100 * planner.mfu(r),
                 100 * (passes.seconds / passes.work[0] - 1),
                 100. * double(plan.pp - 1) / double(plan.micro_batches)),
             {.size = 12});
    write_picture(directory, "step.svg", svg);
}

}  // namespace ultrascale::five_d::playbook
