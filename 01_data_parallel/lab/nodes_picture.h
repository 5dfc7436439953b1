// --demo bandwidth with --node-size and --svg: nodes.svg, an all-reduce over ever more nodes. What
// the playbook published of its H100s is on the left, what was measured here, over pretended nodes,
// on the right; beside each stands the rate that the cards alone would allow (comm/nodes.h).
#pragma once

#include <array>
#include <cmath>

#include "call_times.h"
#include "comm/nodes.h"
#include "lab/options/cli.h"
#include "lab/pictures/charts.h"

namespace ultrascale::data_parallel {

// "Communication Bandwidth by Number of Nodes (size=256MB)", nodes of 8 H100s: the busbw of an
// all-reduce in GB/s that this figure of the playbook prints, its median. (The bands of the 5th to
// the 95th percentile have no numbers.)
// https://huggingface.co/spaces/nanotron/ultrascale-playbook
struct PublishedBandwidth {
    int nodes;
    double gb;
};
inline constexpr std::array<PublishedBandwidth, 7> playbook_bandwidths = {
    {{1, 436.0}, {2, 361.7}, {4, 160.1}, {8, 99.6}, {16, 84.7}, {32, 64.9}, {64, 32.9}}};

// The busbw in bytes/s that links allow whose rates do not change: `inside` a node of `on_node`
// ranks, and `card` for a rank's network card.
inline double allowed_busbw(int nodes, int on_node, double inside, double card, Crossing crossing) {
    const double n = double(nodes) * on_node, sent = 2 * (n - 1) / n;
    const Spread group{n, double(on_node), 1};
    const double seconds =
        std::max(sent / inside, bytes_over_card(Collective::all_reduce, 1, group, crossing) / card);
    return sent / seconds;
}

struct NodesMeasured {
    int nodes;
    CallTimes busbw;  // bytes/s: of the slowest twentieth of the calls, the median, the fastest
};

// All ranks call it. Measures all-reduces of `bytes` on the first 1, 2, 4, ... nodes; the others
// wait.
inline std::vector<NodesMeasured> measure_nodes(const Communicator& world, int on_node,
                                                int64_t bytes) {
    std::vector<NodesMeasured> measured;
    const Tensor x = Tensor::zeros({bytes / 4}, DType::fp32, Memory::communication);
    for (int nodes = 1; nodes * on_node <= world.size(); nodes *= 2) {
        const int ranks = nodes * on_node;
        const Communicator group = world.split(world.rank() < ranks ? 0 : 1, world.rank(), "nodes");
        if (world.rank() >= ranks || ranks == 1) continue;
        const CallTimes t = call_times(group, [&] { group.all_reduce(x); });
        const double sent = 2. * (ranks - 1) / ranks * double(bytes);
        measured.push_back({nodes, {sent / t.p95, sent / t.median, sent / t.p5}});
    }
    return measured;
}

inline void draw_nodes(const Options& options, const Communicator& world, int64_t bytes) {
    const int on_node = options.node_size;
    const std::vector<NodesMeasured> measured = measure_nodes(world, on_node, bytes);
    if (world.rank() != 0) return;
    Svg svg(900, 420, "An all-reduce over ever more nodes: busbw, in GB/s",
            "Left: by the data sheet the rate would stay; the playbook measured that it falls to a "
            "thirteenth on 64 nodes. Right: what was measured here over pretended nodes, with the "
            "5th and 95th percentile, follows the formula.");
    const auto words = [](Point p) {
        return fmt::format("{:.4g} GB/s, nodes: {:.0f}", std::exp2(p.y), std::exp2(p.x));
    };
    const auto draw = [&](const Panel& panel, const std::vector<Curve>& curves) {
        std::vector<std::pair<double, std::string>> names;
        for (const Curve& curve : curves)
            names.emplace_back(draw_curve(svg, panel, curve, words), curve.name);
        draw_names(svg, panel.across.end + 12, names);
    };

    constexpr double NVLink = 450e9,
                     card = 50e9;  // H100 SXM's data sheet; InfiniBand of 400 Gbit/s
    const Panel left = draw_panel(svg, {60, 96, 260, 234}, "nodes of 8 H100s, 256 MB", "nodes",
                                  binary_scale(0, 6), binary_scale(4, 9));
    Curve sheet{"data sheet", {}, {Role::rank0, 2}},
        published{"published", {}, {}, Mark::circle, true};
    for (const auto& [nodes, gb] : playbook_bandwidths) {
        const double x = std::log2(nodes);
        sheet.figures.push_back(
            {x, std::log2(allowed_busbw(nodes, 8, NVLink, card, Crossing::rings) / 1e9)});
        published.figures.push_back({x, std::log2(gb)});
    }
    draw(left, {sheet, published});

    const double inter = options.inter_gbps * 1e9 / 8;
    double slowest = inter, fastest = 0;
    for (const NodesMeasured& m : measured)
        slowest = std::min(slowest, m.busbw.p5), fastest = std::max(fastest, m.busbw.p95);
    const int low = int(std::floor(std::log2(slowest / 1e9))),
              high = std::max(int(std::ceil(std::log2(fastest / 1e9))), low + 2);
    const Panel right = draw_panel(
        svg, {530, 96, 230, 234},
        fmt::format("here, {} ranks a node, {}", on_node, format_bytes(double(bytes))), "nodes",
        binary_scale(0, int(std::log2(measured.back().nodes))), binary_scale(low, high));
    Curve formula{"formula", {}, {Role::rank0, 2}},
        median{"median", {}, {role_of_rank(1), 2, true}, Mark::triangle};
    for (const NodesMeasured& m : measured) {
        const double x = std::log2(m.nodes),
                     allowed = allowed_busbw(m.nodes, on_node, measured.front().busbw.median, inter,
                                             Crossing::exchange);
        formula.figures.push_back({x, std::log2(allowed / 1e9)});
        median.figures.push_back({x, std::log2(m.busbw.median / 1e9)});
        const double px = right.across(x), from = right.up(std::log2(m.busbw.p5 / 1e9)),
                     to = right.up(std::log2(m.busbw.p95 / 1e9));
        svg.line({px, from}, {px, to}, {.width = 2});
        for (const double end : {from, to}) svg.line({px - 6, end}, {px + 6, end}, {.width = 2});
    }
    draw(right, {formula, median});
    draw_caption(
        svg, 388,
        {"Left: NVLink of 450 GB/s, a card of 50 GB/s for each GPU, and what the playbook measured "
         "(hollow). Right: measured, with the",
         fmt::format("5th and 95th percentile of the calls; the formula takes one node's rate as "
                     "measured, and then cards of {:g} Gbit/s.",
                     options.inter_gbps)});
    write_picture(options.svg, "nodes.svg", svg);
}

}  // namespace ultrascale::data_parallel
