// --demo tree: a ring's all-reduce beside a double binary tree's, by formula for up to 1,024 ranks,
// and measured with links whose rate and latency are pretended (D, k, f: 6_tree_all_reduce.h):
//
//     ring    2(n-1)     latency + 2(n-1)/n   S/bw
//     tree    (k + 2D-1) latency + 2 (1+f/k)  S/bw
//
// Small tensors are faster along the tree, because its hops grow with log n only; large ones round
// the ring, because the tree's transfer is a little longer, and its pipeline must be filled.
#pragma once

#include "../6_tree_all_reduce.h"
#include "latency_demo.h"

namespace ultrascale::data_parallel {

// What filling a tree's pipeline takes, in steps of four chunks: f.
inline double tree_fill(int n) {
    return tree_depth(n) - (std::has_single_bit(unsigned(n)) ? 1.5 : 1);
}
// The seconds of an all-reduce of `bytes` on n >= 2 ranks along two trees, in `chunks` a half.
inline double tree_seconds(int n, double bytes, double chunks, const Link& link) {
    return (chunks + 2 * tree_depth(n) - 1) * link.latency +
           2 * (1 + tree_fill(n) / chunks) * bytes / link.bandwidth;
}
// The number of chunks with which it takes least.
inline double best_chunks(int n, double bytes, const Link& link) {
    const double hops = bytes / link.bandwidth / std::max(link.latency, 1e-12);
    return std::max(1.0, std::round(std::sqrt(2 * std::max(tree_fill(n), 0.0) * hops)));
}
// The bytes up to which the tree is faster than the ring, with the best number of chunks; 0: none.
inline double tree_crossing(int n, const Link& link) {
    const auto tree_wins = [&](double bytes) {
        return tree_seconds(n, bytes, best_chunks(n, bytes, link), link) <
               ring_seconds(n, bytes, link).all();
    };
    double below = 1, above = 1e18;
    if (!tree_wins(below)) return 0;
    while (above / below > 1.001)
        (tree_wins(std::sqrt(below * above)) ? below : above) = std::sqrt(below * above);
    return below;
}

namespace tree_demo {

inline void print_by_ranks(const Link& link) {
    print(fmt::format("all-reduce by formula, on links of {:.4g} Gbit/s with {:.4g} us a hop: ms",
                      link.bandwidth * 8 / 1e9, link.latency * 1e6));
    constexpr double sizes[] = {65536, 1 << 20, 1 << 26};
    std::string head = fmt::format("  {:>6} {:>7} {:>7}", "", "hops", "");
    for (double bytes : sizes) head += fmt::format(" {:>17}", format_bytes(bytes));
    print(head + "   the tree is");
    head = fmt::format("  {:>6} {:>7} {:>7}", "ranks", "ring", "tree");
    for (size_t i = 0; i < std::size(sizes); ++i)
        head += fmt::format(" {:>9} {:>7}", "ring", "tree");
    print(head + "  faster up to");
    for (int n = 2; n <= 1024; n *= 2) {
        std::string line = fmt::format("  {:>6} {:>7} {:>7}", n, 2 * (n - 1), 2 * tree_depth(n));
        for (double bytes : sizes)
            line += fmt::format(" {:>9.3f} {:>7.3f}", ring_seconds(n, bytes, link).all() * 1e3,
                                tree_seconds(n, bytes, best_chunks(n, bytes, link), link) * 1e3);
        const double crossing = tree_crossing(n, link);
        print(line + fmt::format(" {:>13}", crossing > 0 ? format_bytes(crossing) : "-"));
    }
}

// The size at which the tree's time divided by the ring's becomes 1, interpolated; 0: none.
inline double measured_crossing(const std::vector<std::pair<double, double>>& ratio_by_size) {
    for (size_t i = 1; i < ratio_by_size.size(); ++i) {
        const auto [small, low] = ratio_by_size[i - 1];
        const auto [large, high] = ratio_by_size[i];
        if (low >= 1 || high < 1) continue;
        return small * std::pow(large / small, std::log(1 / low) / std::log(high / low));
    }
    return 0;
}

// Measures both at sizes around the predicted crossing, on links that are made to be like `link`.
inline void measure(const Communicator& world, const Link& link, Report& report) {
    const int n = world.size();
    if (tree_crossing(n, link) == 0)
        return print(fmt::format("\non {} the ring is always as fast", format_count(n, "rank")));
    const Tensor small = Tensor::zeros({n}, DType::fp32, Memory::communication);
    let_waits_sleep(1e-4);  // else ranks that wait keep the cores from those that have a message
    const double own = measure_call(world, [&] { ring_all_reduce(world, small); }) / (2 * (n - 1));
    if (own > link.latency / 2)
        return print(
            fmt::format("\na hop takes {:.0f} us here: to measure, pretend slower links, "
                        "such as --hop-us 5000 --hop-gbps 0.1",
                        own * 1e6));
    pretend_nodes(1, link.bandwidth * 8 / 1e9, link.latency);
    const double crossing = tree_crossing(n, link);
    const Tensor x =
        Tensor::zeros({int64_t(8 * crossing / 4) + 1}, DType::fp32, Memory::communication);
    print(
        fmt::format("\nmeasured on {} with links made to be like this (a hop takes {:.0f} us "
                    "without that)",
                    format_count(n, "rank"), own * 1e6));
    print(fmt::format("  {:>11} {:>7} {:>12} {:>9} {:>15}", "", "", "ring: ms", "", "tree: ms"));
    print(fmt::format("  {:>11} {:>7} {:>12} {:>9} {:>15} {:>9} {:>12}", "size", "chunks",
                      "formula", "measured", "formula", "measured", "tree / ring"));
    std::vector<std::pair<double, double>> ratios;
    for (double times : {1.0 / 64, 1.0 / 8, 0.5, 1.0, 2.0, 8.0}) {
        const Tensor payload = x.slice(0, std::max<int64_t>(int64_t(times * crossing / 4), 1));
        const double size = double(payload.bytes()), chunks = best_chunks(n, size, link),
                     ring_formula = ring_seconds(n, size, link).all(),
                     tree_formula = tree_seconds(n, size, chunks, link),
                     ring = measure_call(world, [&] { ring_all_reduce(world, payload); }),
                     tree = measure_call(world,
                                         [&] { tree_all_reduce(world, payload, int64_t(chunks)); });
        ratios.push_back({size, tree / ring});
        print(fmt::format("  {:>11} {:>7} {:>12.1f} {:>9.1f} {:>15.1f} {:>9.1f} {:>12.2f}",
                          format_bytes(size), chunks, ring_formula * 1e3, ring * 1e3,
                          tree_formula * 1e3, tree * 1e3, tree / ring));
        report.row({{"bytes", payload.bytes()},
                    {"ring_formula_ms", ring_formula * 1e3},
                    {"ring_ms", ring * 1e3},
                    {"tree_formula_ms", tree_formula * 1e3},
                    {"tree_ms", tree * 1e3}});
    }
    const double measured = measured_crossing(ratios);
    print(fmt::format("the tree is faster up to: predicted {}, measured {}", format_bytes(crossing),
                      measured > 0 ? format_bytes(measured) : "none of these sizes"));
    report.value("tree_crossing", "predicted_bytes", crossing);
    report.value("tree_crossing", "measured_bytes", measured);
}

}  // namespace tree_demo

// All ranks call it; rank 0 prints. `link` is a link of the pretended cluster.
inline void demo_tree(const Options& options, const Communicator& world, const Link& link) {
    tree_demo::print_by_ranks(link);
    Report report("01_data_parallel", options, {}, 0);
    if (world.size() == 1)
        print("\none rank has nobody to send to: start more, mpirun -n 8 ...");
    else
        tree_demo::measure(world, link, report);
    report.finish();
}

}  // namespace ultrascale::data_parallel
