// --playbook --svg DIR: the playbook's figures of what happens at scale. Curves are by formula,
// hollow marks are what the playbook published.
//
//     dp_scaling.svg           speed and memory of a GPU, by the number of GPUs in data parallelism
//     tp_batches.svg           the largest micro-batch by tp, with and without sequence parallelism
//     recompute_by_length.svg  memory by length, technique, and what is recomputed
#pragma once

#include <cmath>

#include "01_data_parallel/lab/nodes_picture.h"
#include "lab/pictures/charts.h"
#include "playbook_points.h"
#include "poster.h"
#include "step_picture.h"
#include "sweep_picture.h"

namespace ultrascale::five_d::playbook {

// A GPU's rate as a share of that on 8 GPUs, with cards as fast as data sheets say; or, `measured`,
// as fast as the playbook measured between so many nodes.
inline std::vector<Point> dp_speed(bool measured) {
    const StepShape shape = playbook_rows()[0].shape;
    MemoryModel memory(shape, Program::eager);
    std::vector<Point> figures;
    double first = 0;
    for (const auto& [nodes, busbw] : playbook_bandwidths) {
        Hardware h = find_hardware("h100");
        if (measured) {
            const double card = busbw * 1e9 / h.nodes.cards_of_node();
            h.between.bytes_per_second = h.between.reduced_per_second = card;
        }
        const double rate = 1 / CostModel(shape, h, memory).of({.dp = 8 * nodes}).seconds();
        if (first == 0) first = rate;
        figures.push_back({std::log2(8 * nodes), 100 * rate / first});
    }
    return figures;
}
inline std::vector<Point> dp_published() {
    std::vector<Point> figures;
    double rate = 100;
    for (const auto& [gpus, drop] : dp_drops)
        figures.push_back({std::log2(gpus), rate *= 1 - drop / 100});
    return figures;
}
inline void draw_dp_scaling(const std::string& directory) {
    const StepShape shape = playbook_rows()[0].shape;
    Svg svg(900, 420, "Data parallelism from 8 to 512 GPUs: speed and memory of a GPU",
            "Left: speed relative to 8 GPUs. With cards of constant speed it would stay; with the "
            "bandwidths that the playbook measured it falls to a third, as the playbook's does. "
            "Right: memory is constant with plain data parallelism, and falls with ZeRO.");
    const auto curve = [&](const Panel& panel, const Curve& c, const char* unit) {
        return draw_curve(svg, panel, c, [&](Point p) {
            return fmt::format("{:.1f} {} on {:.0f} GPUs", p.y, unit, std::exp2(p.x));
        });
    };
    const Panel speed = draw_panel(svg, {60, 90, 240, 240}, "tokens/s of a GPU, % of 8 GPUs'",
                                   "GPUs", binary_scale(3, 9), linear_scale(100, 5));
    const double constant =
        curve(speed, {"constant cards", dp_speed(false), {Role::rank0, 2}}, "%");
    const double slower = curve(
        speed, {"measured cards", dp_speed(true), {role_of_rank(1), 2, true}, Mark::triangle}, "%");
    curve(speed, {"published", dp_published(), {}, Mark::circle, true}, "%");
    draw_names(svg, 312,
               {{constant - 8, "cards of 48 GB/s"},
                {constant + 8, "at any distance"},
                {slower - 8, "cards as slow as the"},
                {slower + 8, "playbook measured"}});
    draw_mark(svg, {318, 215}, Mark::circle, Role::ink, "", 4.5, true);
    svg.text(328, 219, "published: the playbook's", {.size = 12});

    const Panel held = draw_panel(svg, {520, 90, 240, 240}, "memory of a GPU, GB", "GPUs",
                                  binary_scale(3, 9), linear_scale(40, 4));
    const Box band{held.across.begin, held.up(dp_memory[1]), 200,
                   held.up(dp_memory[0]) - held.up(dp_memory[1])};
    svg.rect(band, Role::exposed,
             fmt::format("published: {} to {} GB", dp_memory[0], dp_memory[1]));
    MemoryModel memory(shape, Program::eager);
    std::vector<std::pair<double, std::string>> names;
    for (const int zero : {0, 1, 2, 3}) {
        Curve c{zero == 0 ? "plain" : fmt::format("ZeRO-{}", zero),
                {},
                {role_of_rank(zero), 2, zero % 2 == 1},
                Mark(zero)};
        for (double f = 3; f <= 9; ++f) {
            const Plan plan{.dp = int64_t(std::exp2(f)), .zero = zero};
            c.figures.push_back({f, double(memory.worst(plan).most) / 1e9});
        }
        names.emplace_back(curve(held, c, "GB"), c.name);
    }
    draw_names(svg, 772, names);
    svg.text(band.x, band.bottom() + 14, "published: 36 to 37.5 GB", {.size = 12, .halo = true});
    draw_caption(
        svg, 388,
        {"By formula: 1.34B, one sequence of 4096 tokens a GPU, gradients in fp32. The "
         "playbook does not say what it trained; this",
         "has its memory. It prints the drops of speed; its axis of memory goes from 36 to "
         "37.5 GB (the band)."});
    write_picture(directory, "dp_scaling.svg", svg);
}

// The largest micro-batch of the playbook's 3.57B that fits with this tp; 0 if none does.
inline int64_t largest_batch(int64_t tp, bool sequence_parallel) {
    MemoryModel memory(playbook_rows()[1].shape, Program::eager);
    const double limit = PlanFor::share_of_tensors * find_hardware("h100").memory;
    Plan plan{.tp = tp, .tensor = {.sequence_parallel = sequence_parallel}};
    while (double(memory.worst(plan).most) <= limit) ++plan.micro_batch;
    return plan.micro_batch - 1;
}
inline void draw_tp_batches(const std::string& directory) {
    Svg svg(900, 420, "The largest micro-batch by tp, without and with sequence parallelism",
            "Without sequence parallelism the curve flattens at 21 sequences; with it the largest "
            "micro-batch doubles with tp. Hollow marks: the playbook's.");
    const Panel panel =
        draw_panel(svg, {60, 76, 500, 264}, "sequences of 4096 tokens that fit into 80 GB, 3.57B",
                   "tp", binary_scale(1, 5), binary_scale(0, 7));
    std::vector<std::pair<double, std::string>> names;
    for (const bool sequence_parallel : {false, true}) {
        const auto& published = sequence_parallel ? tp_sp_batches : tp_batches;
        const std::string name = sequence_parallel ? "tp + sp" : "tp alone";
        const Mark mark = sequence_parallel ? Mark::square : Mark::triangle;
        Curve ours{name, {}, {role_of_rank(sequence_parallel), 2, !sequence_parallel}, mark},
            theirs{name + ", published", {}, {}, mark, true};
        for (const auto& [tp, batch] : published) {
            const double x = std::log2(tp);
            ours.figures.push_back({x, std::log2(double(largest_batch(tp, sequence_parallel)))});
            theirs.figures.push_back({x, std::log2(batch)});
        }
        const auto words = [](Point p) {
            return fmt::format("{:.0f} sequences at tp {:.0f}", std::exp2(p.y), std::exp2(p.x));
        };
        for (const Curve& c : {ours, theirs}) {
            const double y = draw_curve(svg, panel, c, words);
            names.emplace_back(
                y, fmt::format("{}{}: {:.0f}", c.hollow ? "published, " : "by formula, ", name,
                               std::exp2(c.figures.back().y)));
        }
    }
    draw_names(svg, 574, names);
    draw_caption(
        svg, 392,
        {"By formula: nanotron's activations, which are more than ours, all states in the "
         "group of tp; 94 % of 80 GB for tensors.",
         "Hollow: the playbook's two figures \"Maximum Batch Size per TP Value\". With tp 32 a "
         "group is four nodes."});
    write_picture(directory, "tp_batches.svg", svg);
}

// Memory by length of Llama-3-8B on 8 GPUs (one panel is one GPU), for what is kept.
inline void draw_recompute_by_length(const std::string& directory) {
    const std::pair<const char*, Plan> ways[] = {
        {"one GPU", {}},
        {"dp 8, ZeRO-1", {.dp = 8, .zero = 1}},
        {"dp 8, ZeRO-3", {.dp = 8, .zero = 3}},
        {"pp 8", {.pp = 8, .micro_batches = 8}},
        {"tp 8, sp", {.tp = 8}},
        {"cp 8", {.cp = 8}},
        {"cp 8, ZeRO-3", {.cp = 8, .zero = 3}},
        {"tp 2, cp 4, ZeRO-3", {.tp = 2, .cp = 4, .zero = 3}}};
    Svg svg(900, 640, "Llama-3-8B from 1k to 128k tokens: memory of a GPU of eight, in GB",
            "Eight panels, one for each technique. Without tiles of attention memory grows with "
            "the square of the length, and selective recomputation only keeps it from being held "
            "for all layers; full recomputation of layers makes 128k fit with tp or cp.");
    for (size_t i = 0; i < std::size(ways); ++i) {
        const auto& [name, base] = ways[i];
        const double left = 50 + 212 * double(i % 4), top = 96 + 270 * double(i / 4);
        AxisScale gb = binary_scale(4, 10), tokens = binary_scale(10, 17);
        gb.words = [](double f) { return fmt::format("{:.0f}", std::exp2(f)); };
        tokens.figures = {10, 12, 14, 17};
        const Panel panel = draw_panel(svg, {left, top, 176, 190}, name,
                                       i < 4 ? "" : "tokens of a sequence", tokens, gb, i % 4 == 0);
        const double limit = panel.up(std::log2(80));
        svg.line({left, limit}, {panel.across.end, limit}, {.width = 1.5, .dashed = true});
        for (size_t k = 0; k < std::size(keepings); ++k) {
            if (base.cp > 1 && keepings[k].attention == AttentionKind::naive) continue;
            Curve curve{fmt::format("{}, {}", name, keepings[k].name),
                        {},
                        {role_of_rank(int(k)), 2},
                        Mark(k)};
            for (double f = 10; f <= 17; ++f) {
                MemoryModel memory(
                    keep(shape_of("llama-3-8b", int64_t(std::exp2(f))), keepings[k]));
                Plan plan = base;
                plan.recompute = keepings[k].recompute;
                const double figure = std::log2(double(memory.worst(plan).most) / 1e9);
                if (figure <= panel.up.to) curve.figures.push_back({f, figure});
            }
            draw_curve(svg, panel, curve, [](Point p) {
                return fmt::format("{:.1f} GB at {:.0f} tokens", std::exp2(p.y), std::exp2(p.x));
            });
        }
    }
    double x = 20;
    constexpr const char* kept[] = {"all, without tiles", "selective, without tiles",
                                    "all, in tiles (FlashAttention)", "full: only layers' inputs"};
    for (size_t k = 0; k < std::size(kept); ++k) {
        draw_mark(svg, {x + 6, 52}, Mark(k), role_of_rank(int(k)));
        svg.text(x + 16, 56, kept[k], {.size = 13});
        x += 40 + text_width(kept[k], 13);
    }
    draw_caption(svg, 620,
                 {"By formula; one sequence a rank and micro-batch, bf16, gradients in fp32. "
                  "Dashed: 80 GB. A ring of cp computes in tiles anyway."});
    write_picture(directory, "recompute_by_length.svg", svg);
}

// All pictures of SCALE.md, and the poster.
inline void draw_at_scale(const std::string& directory) {
    for (const auto draw : {draw_dp_scaling, draw_tp_batches, draw_recompute_by_length, draw_sweep,
                            draw_poster, draw_step})
        draw(directory);
}

}  // namespace ultrascale::five_d::playbook
