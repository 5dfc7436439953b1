// --playbook: the playbook's tables and figures of memory and of the best layouts, by formula and
// for the book's own models. With --svg DIR they are drawn as pictures.
//
//     memory_by_length.svg    what one GPU would hold, by the length of the sequence, with and
//                             without recomputation
//     strategies.svg          what each technique takes off a GPU of eight
//     heatmap.svg             the fastest layout for model x nodes that fits, and its MFU
#pragma once

#include "lab/pictures/charts.h"
#include "lab/report/report.h"
#include "planner.h"
#include "published.h"

namespace ultrascale::five_d {

namespace playbook {

inline double gib(double bytes) { return bytes / double(int64_t(1) << 30); }
inline StepShape shape_of(const std::string& model, int64_t seq) {
    return {.config = preset(model),
            .model = {.dtype = DType::bf16},
            .grad_dtype = DType::fp32,
            .micro_batch = 1,
            .seq = seq};
}

// The ways to keep activations that the book compares: without tiles of attention, all activations
// or all except those that grow with the square of the length; in tiles; only the layers' inputs.
struct Keeping {
    const char* name;
    AttentionKind attention;
    Recompute recompute;
};
inline constexpr Keeping keepings[] = {{"all", AttentionKind::naive, Recompute::none},
                                       {"selective", AttentionKind::naive, Recompute::selective},
                                       {"flash", AttentionKind::flash, Recompute::none},
                                       {"full", AttentionKind::flash, Recompute::full}};
inline constexpr int64_t lengths[] = {1024, 4096, 16384};

inline StepShape keep(StepShape shape, const Keeping& keeping) {
    shape.model.attention = keeping.attention, shape.model.recompute = keeping.recompute;
    return shape;
}

inline std::vector<Part> parts_of(const std::string& name, const MemoryEstimate& m) {
    std::vector<Part> parts;
    const auto part = [&](Role role, const char* what, int64_t bytes) {
        parts.push_back({role, double(bytes), fmt::format("{}, {}: {} bytes", name, what, bytes)});
    };
    part(Role::parameters, "parameters", m.parameters);
    part(Role::gradients, "gradients", m.gradients);
    part(Role::optimizer, "optimizer", m.optimizer);
    part(Role::activations, "activations", m.peak_activations);
    part(Role::communication, "buffers", m.peak_communication);
    return parts;
}

inline std::vector<Meaning> memory_legend() {
    return {{Role::parameters, "parameters"},
            {Role::gradients, "gradients"},
            {Role::optimizer, "optimizer states"},
            {Role::activations, "activations"},
            {Role::communication, "buffers"}};
}

// Draws bars of memory, each with its name before it and its total after it.
inline void draw_bars(const std::string& directory, const std::string& file,
                      const std::string& title,
                      const std::vector<std::pair<std::string, MemoryEstimate>>& bars) {
    if (directory.empty()) return;
    double most = 0;
    std::string figures;
    for (const auto& [name, m] : bars) {
        most = std::max(most, double(m.total()));
        figures += fmt::format("{}: {}. ", name, format_bytes(double(m.total())));
    }
    Svg svg(900, 86 + 30 * double(bars.size()), title, "Bars by formula, stacked. " + figures);
    draw_legend(svg, 20, 52, memory_legend());
    const Axis across = {0, most, 240, 790};
    double y = 76;
    for (const auto& [name, m] : bars) {
        svg.text(230, y + 16, name, {.anchor = Text::end});
        const double end = draw_stacked_bar(svg, across, y, 22, parts_of(name, m));
        svg.text(end + 8, y + 16, format_bytes(double(m.total())));
        y += 30;
    }
    write_picture(directory, file, svg);
}

inline void memory_by_length(Report& report, const std::string& directory) {
    print("one GPU, one sequence, bf16 with gradients in fp32: GiB that are held, by formula");
    print("                weights    activations of so many tokens, and what is kept of them");
    print(fmt::format("  {:<13} {:>6}  {:>22} {:>26} {:>26}", "", "18 N", "1024", "4096", "16384"));
    std::string head = fmt::format("  {:<13} {:>6}", "", "");
    for (size_t i = 0; i < std::size(lengths); ++i)
        head += fmt::format("  {:>5} {:>6} {:>5} {:>5}", "all", "select", "flash", "full");
    print(head);
    for (const char* model : {"llama-3.2-1b", "llama-2-7b", "llama-3-70b", "llama-3-405b"}) {
        const MemoryEstimate states = estimate_memory(shape_of(model, 1024));
        std::string line = fmt::format(
            "  {:<13} {:>6.0f}", model,
            gib(double(states.parameters) + double(states.gradients) + double(states.optimizer)));
        for (const int64_t seq : lengths) {
            line += " ";
            for (const Keeping& keeping : keepings) {
                const double bytes =
                    double(estimate_memory(keep(shape_of(model, seq), keeping)).peak_activations);
                line += fmt::format(" {:>{}.{}f}", gib(bytes), keeping.name[0] == 's' ? 6 : 5,
                                    gib(bytes) < 100 ? 1 : 0);
                report.row({{"table", "memory_by_length"},
                            {"model", model},
                            {"seq", seq},
                            {"kept", keeping.name},
                            {"activations_bytes", bytes}});
            }
        }
        print(line);
    }
    std::vector<std::pair<std::string, MemoryEstimate>> bars;
    for (const int64_t seq : lengths)
        for (const Keeping& keeping : keepings)
            bars.emplace_back(fmt::format("{} tokens, {}", seq, keeping.name),
                              estimate_memory(keep(shape_of("llama-3.2-1b", seq), keeping)));
    draw_bars(directory, "memory_by_length.svg",
              "Llama-3.2-1B on one GPU, by length and by what is kept of activations", bars);
}

inline void strategies(Report& report, const std::string& directory) {
    const StepShape shape = shape_of("llama-3-8b", 4096);
    const std::pair<const char*, Plan> ways[] = {
        {"one GPU", {.micro_batches = 8}},
        {"ZeRO-1, dp 8", {.dp = 8, .zero = 1}},
        {"ZeRO-2, dp 8", {.dp = 8, .zero = 2}},
        {"ZeRO-3, dp 8", {.dp = 8, .zero = 3}},
        {"ZeRO-3, recomputed", {.dp = 8, .zero = 3, .recompute = Recompute::full}},
        {"tp 8", {.tp = 8, .micro_batches = 8}},
        {"cp 8", {.cp = 8, .micro_batches = 8}},
        {"cp 8, ZeRO-3", {.cp = 8, .zero = 3, .micro_batches = 8}},
        {"pp 8", {.pp = 8, .micro_batches = 8}},
        {"tp 4, pp 2", {.tp = 4, .pp = 2, .micro_batches = 8}},
        {"tp 2, dp 4, ZeRO-3", {.dp = 4, .tp = 2, .zero = 3, .micro_batches = 2}}};
    print(
        "\nLlama-3-8B, 4096 tokens, 8 sequences a step on 8 GPUs: GiB of the rank that needs most");
    print("                       weights  gradients  states  activations  buffers     all");
    MemoryModel memory(shape);
    std::vector<std::pair<std::string, MemoryEstimate>> bars;
    for (const auto& [name, plan] : ways) {
        const MemoryEstimate m = memory.worst(plan).memory;
        print(fmt::format("  {:<20} {:>7.1f} {:>10.1f} {:>7.1f} {:>12.1f} {:>8.1f} {:>7.1f}", name,
                          gib(double(m.parameters)), gib(double(m.gradients)),
                          gib(double(m.optimizer)), gib(double(m.peak_activations)),
                          gib(double(m.peak_communication)), gib(double(m.total()))));
        report.row({{"table", "strategies"}, {"way", name}, {"total_bytes", m.total()}});
        bars.emplace_back(name, m);
    }
    draw_bars(directory, "strategies.svg",
              "Llama-3-8B on 8 GPUs: what the rank that needs most holds", bars);
}

// Prints and draws the fastest layout that fits, for the book's models and its batch of 1 M tokens.
inline void heatmap(Report& report, const std::string& directory) {
    constexpr int64_t nodes[] = {1, 2, 4, 8, 16, 32, 64};
    const char* names[] = {"1.34B", "3.57B", "8.86B", "80B"};
    const std::vector<PublishedRow> rows = playbook_rows();
    const StepShape* shapes[4] = {&rows[0].shape, &rows[1].shape, &rows[2].shape, &rows[9].shape};
    constexpr double left = 78, top = 74, width = 115, height = 88;
    Svg svg(left + width * std::size(nodes) + 14, top + height * 4 + 56,
            "The fastest layout that fits, by model and nodes of 8 H100s: MFU in %, by formula",
            "A cell is filled up to its MFU, of 60 %. Below it stand the layout, the sequences of "
            "a micro-batch, and the micro-batches of a step; in brackets the playbook's best MFU.");
    print("\nthe fastest that fits on nodes of 8 H100s, 1 M tokens a step of 4096: MFU, layout");
    std::string head = "  nodes", lines[std::size(nodes)];
    for (const char* name : names) head += fmt::format(" {:<22}", name);
    print(head.substr(0, head.find_last_not_of(' ') + 1));
    for (size_t m = 0; m < 4; ++m) {
        svg.text(left - 10, top + height * (double(m) + 0.5), names[m], {.anchor = Text::end});
        for (size_t n = 0; n < std::size(nodes); ++n) {
            Planner planner({.shape = *shapes[m],
                             .hardware = find_hardware("h100"),
                             .gpus = 8 * nodes[n],
                             .sequences = 256});
            const Planned all = planner.plan();
            const Box cell{left + width * double(n), top + height * double(m), width - 6,
                           height - 6};
            if (m == 0)
                svg.text(cell.center().x, top - 10, fmt::format("{}", nodes[n]),
                         {.anchor = Text::middle, .bold = true});
            svg.outline(cell, {.role = Role::faint});
            if (m == 0) lines[n] = fmt::format("  {:>5}", nodes[n]);
            if (all.fit.empty()) {
                lines[n] += fmt::format(" {:<22}", "does not fit");
                svg.text(cell.center().x, cell.center().y, "does not fit",
                         {.anchor = Text::middle});
                continue;
            }
            const Plan& best = all.fit.front().plan;
            const double mfu = 100 * planner.mfu(all.fit.front());
            std::string layout;
            for (const auto& [name, size] :
                 {std::pair("dp", best.dp), {"cp", best.cp}, {"tp", best.tp}, {"pp", best.pp}})
                if (size > 1) layout += fmt::format("{}{} ", name, size);
            layout += fmt::format("z{}", best.zero);
            lines[n] += fmt::format(" {:<5.1f} {:<16}", mfu, layout);
            const std::string batch = fmt::format("{} x {}", best.micro_batch, best.micro_batches);
            const double filled = (cell.height - 38) * mfu / 60;
            svg.rect({cell.x, cell.bottom() - 38 - filled, cell.width, filled}, Role::forward,
                     fmt::format("{} on {} nodes: MFU {:.1f} %, {}, {}", names[m], nodes[n], mfu,
                                 layout, batch));
            const auto published = std::ranges::find(
                rows, fmt::format("{:>2} x 8, {}", nodes[n], names[m]), &PublishedRow::name);
            const bool known = published != rows.end();
            svg.text(cell.x + cell.width * (known ? 0.28 : 0.5), cell.y + 19,
                     fmt::format("{:.1f}", mfu),
                     {.anchor = Text::middle, .bold = true, .halo = true});
            if (known)
                svg.text(cell.x + cell.width * 0.72, cell.y + 19,
                         fmt::format("({:.1f})", published->mfu),
                         {.anchor = Text::middle, .size = 13, .halo = true});
            svg.text(cell.center().x, cell.bottom() - 23, layout,
                     {.anchor = Text::middle, .size = 12});
            svg.text(cell.center().x, cell.bottom() - 7, batch,
                     {.anchor = Text::middle, .size = 12});
            report.row({{"table", "heatmap"},
                        {"model", names[m]},
                        {"nodes", nodes[n]},
                        {"mfu", mfu},
                        {"layout", layout},
                        {"batch", batch}});
        }
    }
    for (const std::string& line : lines) print(line.substr(0, line.find_last_not_of(' ') + 1));
    svg.text(
        left, top + height * 4 + 18,
        "Columns: nodes. A cell: MFU, and in brackets that of the playbook's best layout, which "
        "may be another one; dp, cp, tp, pp, z",
        {.size = 12});
    svg.text(left, top + height * 4 + 36,
             "(ZeRO's stage); sequences of a micro-batch x micro-batches that are accumulated. The "
             "blue part is the MFU, of 60 %.",
             {.size = 12});
    write_picture(directory, "heatmap.svg", svg);
}

}  // namespace playbook

inline void print_playbook_tables(Report& report, const std::string& directory) {
    playbook::memory_by_length(report, directory);
    playbook::strategies(report, directory);
    playbook::heatmap(report, directory);
}

}  // namespace ultrascale::five_d
