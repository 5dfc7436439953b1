// --svg with a training or with --rehearse: grid.svg, who has what in the grid of ranks; layer.svg,
// what the first rank has of each tensor of a layer, and over whom its gradient is summed.
#pragma once

#include "../4_composition.h"
#include "lab/pictures/charts.h"
#include "predict.h"
#include "train/replica_groups.h"

namespace ultrascale::five_d {

inline constexpr const char* drawn_axes[] = {"tp", "cp", "ep", "dp", "pp"};  // in Role's order

// The rank's place along the axis.
inline int place_along(const Axes& axes, const std::string& axis, int rank) {
    return rank / axes.stride(axis) % axes.size(axis);
}
inline std::string from_to(Range range) {
    return range.size() == 1 ? fmt::format("{}", range.begin)
                             : fmt::format("{} to {}", range.begin, range.end - 1);
}

// What a rank has, a line for each axis.
inline std::vector<std::string> shares_of(const Composition& c, int rank) {
    const Axes& axes = c.techniques.axes;
    const LlamaConfig& config = c.shape.config;
    const auto place = [&](const char* axis) { return place_along(axes, axis, rank); };
    std::vector<std::string> lines;
    const std::vector<Chunk>& chunks = c.schedule.chunks[size_t(place("pp"))];
    const Stage &first = c.stages[size_t(chunks.front().stage)],
                &last = c.stages[size_t(chunks.back().stage)];
    lines.push_back("layers " +
                    (chunks.size() > 1
                         ? fmt::format("{}, {} ...", first.first_layer, last.first_layer)
                         : from_to({first.first_layer, first.last_layer})));
    const Range rows = split_heads(config, axes.tp, place("tp")).q_rows;
    lines.push_back("heads " + from_to({rows.begin / config.head_dim, rows.end / config.head_dim}));
    if (const int64_t E = config.experts.count / axes.ep; E > 0)
        lines.push_back("experts " + from_to({place("ep") * E, (place("ep") + 1) * E}));
    const Layout layout = c.techniques.context.layout;
    const SequenceCut cut(layout, axes.cp, c.shape.seq);
    const int64_t length = cut.length(), chunk = cut.chunk(0).size();
    const auto chunk_of = [&](int64_t i) { return cut.position(place("cp"), i) / chunk; };
    lines.push_back(axes.cp == 1 ? "all tokens"
                    : layout == Layout::striped
                        ? fmt::format("tokens {} + {} i", place("cp"), axes.cp)
                    : layout == Layout::zigzag
                        ? fmt::format("chunks {} and {}", chunk_of(0), chunk_of(length - 1))
                        : fmt::format("chunk {}", chunk_of(0)));
    // Among the ranks that differ along dp and ep, in rank order.
    const bool dp_outside = axes.stride("dp") > axes.stride("ep");
    lines.push_back(fmt::format("part {} of batch", dp_outside
                                                        ? place("dp") * axes.ep + place("ep")
                                                        : place("ep") * axes.dp + place("dp")));
    return lines;
}

// At most 64 ranks, 8 in a row. Those that differ from rank 0 along one axis only have its colour.
inline void draw_grid(const std::string& directory, Composition& c) {
    const Axes& axes = c.techniques.axes;
    const int all = axes.tp * axes.cp * axes.ep * axes.dp * axes.pp, ranks = std::min(all, 64),
              columns = std::min(ranks, 8), rows = (ranks + columns - 1) / columns;
    constexpr double left = 20, top = 92, width = 108, height = 98;
    std::vector<std::pair<std::string, double>> sent;
    for (const auto& [group, kinds] : predict_balanced(c).communication.groups) {
        double bytes = 0;
        for (const auto& kind : kinds) bytes += kind.sent;
        if (bytes >= 1024) sent.emplace_back(group, bytes);
    }
    std::ranges::sort(sent, std::greater(), &std::pair<std::string, double>::second);
    Svg svg(
        900, top + height * rows + 26 + 18 * double((sent.size() + 2) / 3),
        fmt::format("Who has what: {}{} ranks as pp {} x dp {} x ep {} x cp {} x tp {}",
                    ranks < all ? "64 of " : "", all, axes.pp, axes.dp, axes.ep, axes.cp, axes.tp),
        "Each cell is a rank with its layers, heads, experts, chunks of a sequence and samples. "
        "A coloured rank differs from rank 0 along one axis only: the two are in one group.");
    std::vector<Meaning> meanings;
    for (int a = 0; a < 5; ++a)
        if (axes.size(drawn_axes[a]) > 1)
            meanings.push_back({role_of_rank(a), fmt::format("{}: rank 0's group", drawn_axes[a])});
    draw_legend(svg, left, 50, meanings);
    for (int rank = 0; rank < ranks; ++rank) {
        const Box cell{left + width * (rank % columns), top + height * double(rank / columns),
                       width - 6, height - 6};
        int differs = 0, along = 0;
        for (int a = 0; a < 5; ++a)
            if (place_along(axes, drawn_axes[a], rank) > 0) ++differs, along = a;
        const std::string name = differs == 1 ? fmt::format("rank {}: {}", rank, drawn_axes[along])
                                              : fmt::format("rank {}", rank);
        const std::vector<std::string> shares = shares_of(c, rank);
        svg.rect({cell.x, cell.y, cell.width, 18}, differs == 1 ? role_of_rank(along) : Role::faint,
                 fmt::format("rank {}: {}", rank, fmt::join(shares, ", ")));
        svg.outline(cell, {.width = rank == 0 ? 2.5 : 0.75});
        svg.text(cell.x + 5, cell.y + 14, name,
                 {.size = 12, .bold = true, .role = differs == 1 ? Role::on_fill : Role::ink});
        for (size_t i = 0; i < shares.size(); ++i)
            svg.text(cell.x + 5, cell.y + 31 + 13.5 * double(i), shares[i], {.size = 12});
    }
    const double y = top + height * rows + 12;
    svg.text(left, y, "Rank 0 sends in a step, by group:", {.size = 12, .bold = true});
    for (size_t i = 0; i < sent.size(); ++i)
        svg.text(left + 290 * double(i % 3), y + 18 * double(1 + i / 3),
                 fmt::format("{}: {}", sent[i].first, format_bytes(sent[i].second)), {.size = 12});
    write_picture(directory, "grid.svg", svg);
}

// A tensor's whole shape as a box, with the part that the rank has.
inline void draw_part(Svg& svg, const Box& whole, const std::vector<Range>& part,
                      const Shape& shape, Role role, const std::string& hint) {
    const auto share = [&](size_t d, bool end) {
        if (d >= part.size()) return end ? 1. : 0.;
        return double(end ? part[d].end : part[d].begin) / double(shape[d]);
    };
    const double x = whole.x + whole.width * share(1, false),
                 y = whole.y + whole.height * share(0, false);
    svg.rect({x, y, whole.x + whole.width * share(1, true) - x,
              whole.y + whole.height * share(0, true) - y},
             role, hint);
    svg.outline(whole);
}

inline void draw_layer(const std::string& directory, const Composition& c) {
    const Axes& axes = c.techniques.axes;
    const LlamaConfig& config = c.shape.config;
    const int64_t layer = c.stages[size_t(c.own.stage(0))].last_layer - 1, h = config.hidden,
                  tokens = c.shape.micro_batch * c.shape.seq;
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    struct Row {
        std::string name, whole, own, cut, summed;
        Shape shape;
        std::vector<Range> part;
        Role role = Role::parameters;
    };
    std::vector<Row> rows;
    const auto activation = [&](const std::string& name, const Shape& whole, const Shape& own,
                                const std::string& cut, const std::string& sent) {
        std::vector<Range> part;
        for (const int64_t size : own) part.push_back({0, size});
        rows.push_back(
            {name, to_string(whole), to_string(own), cut, sent, whole, part, Role::activations});
    };
    // "cp (tokens), tp (heads)": the axes along which there are others.
    const auto cut_by = [&](const char* by_tp) {
        std::string words = axes.cp > 1 ? "cp (tokens)" : "";
        if (axes.tp > 1 && *by_tp)
            words += fmt::format("{}tp ({})", words.empty() ? "" : ", ", by_tp);
        return words;
    };
    // Words about an axis along which there is nobody else are left out.
    const auto over = [&](const char* words, const char* axis) {
        return axes.size(axis) > 1 ? fmt::format("{} {}", words, axis) : "";
    };
    const std::string rows_cut = cut_by(c.techniques.tensor.sequence_parallel ? "tokens" : "");
    const int64_t routed = numel(c.stream_shape(c.shape.micro_batch, c.shape.seq / axes.cp)) / h;
    const auto stream = [&](const std::string& name, const std::string& sent) {
        activation(name, {tokens, h}, {routed, h}, rows_cut, sent);
    };
    stream("stream, into the layer", over("gathered over", "tp"));
    for (const auto& parameter : c.own.parameters()) {
        const Parameter& p = *parameter;
        if (!p.name.starts_with(prefix)) continue;
        Row row{p.part(),
                to_string(p.shape),
                to_string(p.local_shape()),
                fmt::format("{}", fmt::join(p.split_over, ", ")),
                data_group(c.mesh, p).name(),
                p.shape,
                p.slice};
        for (const std::string& group : p.replica_groups) row.summed += " + " + group;
        if (row.part.empty())
            for (const int64_t size : p.shape) row.part.push_back({0, size});
        if (const size_t at = row.name.find("experts."); at != std::string::npos) {
            const size_t after = row.name.find('.', at + 8);
            const int64_t expert = std::stoll(row.name.substr(at + 8)),
                          own = config.experts.count / axes.ep;
            if (expert % own != 0) continue;  // all are alike
            if (rows.back().name.ends_with("gate")) {
                const int64_t k = config.experts.router.top_k;
                activation("rows for experts", {tokens * k, h}, {routed * k, h}, rows_cut,
                           over("to experts, and back, over", "ep"));
            }
            row.name = fmt::format("{} experts{}", config.experts.count, row.name.substr(after));
            row.whole = fmt::format("{} x {}", config.experts.count, row.whole);
            row.own = fmt::format("{} x {}", own, row.own);
            row.shape[0] *= config.experts.count, row.part[0] = {0, own * p.shape[0]};
        }
        if (row.name.ends_with("o_proj"))
            activation("attention's output", {tokens, config.q_size()},
                       {tokens / axes.cp, c.local_heads_shape.config.q_size()}, cut_by("heads"),
                       over("keys go round", "cp"));
        rows.push_back(row);
    }
    stream("stream, out of the layer", "");
    constexpr double top = 112, pitch = 38;
    Svg svg(
        900, top + pitch * double(rows.size()) + 34,
        fmt::format("A layer on {} ranks, pp {} x dp {} x ep {} x cp {} x tp {}: what rank 0 has",
                    c.mesh.world().size(), axes.pp, axes.dp, axes.ep, axes.cp, axes.tp),
        "Each tensor of the layer: its whole shape, a box in which rank 0's part is filled, the "
        "part's shape, the axes that cut it, and the ranks over which its gradient is summed.");
    draw_legend(svg, 20, 48,
                {{Role::parameters, "a weight's part"},
                 {Role::activations, "a part of a micro-batch's activations"}});
    constexpr std::pair<double, const char*> heads[] = {
        {20, "tensor"},     {210, "whole shape"}, {330, "rank 0's"},
        {400, "its shape"}, {510, "cut along"},   {690, "gradient summed, or sent"}};
    for (const auto& [x, head] : heads) svg.text(x, top - 16, head, {.size = 13, .bold = true});
    double y = top;
    for (const Row& row : rows) {
        svg.line({20, y - 5}, {880, y - 5}, {.role = Role::faint});
        svg.text(20, y + 18, row.name, {.size = 13});
        svg.text(210, y + 18, row.whole, {.size = 13});
        draw_part(svg, {330, y, 48, 28}, row.part, row.shape, row.role,
                  fmt::format("{}: {} of {}", row.name, row.own, row.whole));
        svg.text(400, y + 18, row.own, {.size = 13});
        svg.text(510, y + 18, row.cut.empty() ? "-" : row.cut, {.size = 13});
        if (!row.summed.empty()) svg.text(690, y + 18, row.summed, {.size = 13});
        y += pitch;
    }
    svg.text(
        20, y + 14,
        fmt::format("Read from a run's own parameters. ZeRO-{} shards over the ranks of the last "
                    "column what is not cut already.",
                    c.techniques.zero.stage),
        {.size = 12});
    write_picture(directory, "layer.svg", svg);
}

inline void draw_layout(const std::string& directory, Composition& all) {
    if (!draws(directory)) return;
    draw_grid(directory, all);
    draw_layer(directory, all);
}

}  // namespace ultrascale::five_d
