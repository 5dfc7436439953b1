// --demo balance --svg: draws balance.svg, each layout's causal square of 16 tokens on 4 ranks.
#pragma once

#include <fmt/format.h>

#include <algorithm>

#include "lab/pictures/svg.h"
#include "ring_work.h"

namespace ultrascale::context_parallel {

namespace balance_demo {

inline constexpr int ranks = 4, seq = 16;  // of the square that is shown
inline constexpr Layout layouts[] = {Layout::contiguous, Layout::zigzag, Layout::striped};

// Returns the rank that has a token.
inline int rank_of(const SequenceCut& cut, int64_t position) {
    int rank = 0;
    while (cut.tokens_before(rank, position + 1) == cut.tokens_before(rank, position)) ++rank;
    return rank;
}

// Draws one layout's square, and below it a bar of work for each rank.
inline void draw_square(Svg& svg, double x, double y, const SequenceCut& cut,
                        const std::string& name) {
    const double cell = 15;
    svg.text(x, y - 26, name, {.bold = true});
    for (int64_t i = 0; i < seq; ++i) {
        const int rank = rank_of(cut, i);
        const std::string digit = std::to_string(rank);
        const double at = cell * (double(i) + 0.5);
        svg.text(x + at, y - 6, digit, {.anchor = Text::middle, .size = 12});
        svg.text(x - 6, y + at + 4, digit, {.anchor = Text::end, .size = 12});
        for (int64_t key = 0; key <= i; ++key)
            svg.rect({x + cell * double(key), y + cell * double(i), cell - 1, cell - 1},
                     role_of_rank(rank),
                     fmt::format("query {}, key {}: rank {} with a key of rank {}", i, key, rank,
                                 rank_of(cut, key)));
    }
    svg.outline({x - 1, y - 1, cell * seq + 1, cell * seq + 1}, {.role = Role::faint});

    const std::vector<double> pairs = pairs_by_rank(cut, nullptr);
    for (int rank = 0; rank < ranks; ++rank) {
        const double top = y + cell * seq + 18 + 22 * rank, width = 2.6 * pairs[size_t(rank)];
        svg.text(x - 14, top + 13, fmt::format("rank {}", rank), {.size = 13});
        svg.rect({x + 34, top, width, 17}, role_of_rank(rank),
                 fmt::format("{}, rank {}: {} pairs", name, rank, pairs[size_t(rank)]));
        svg.text(x + 40 + width, top + 13, fmt::format("{} pairs", pairs[size_t(rank)]),
                 {.size = 13});
    }
    const Balance balance = balance_of(pairs);
    svg.text(x - 14, y + cell * seq + 126,
             fmt::format("mean / most: {} / {} = {:.2f}", balance.mean, balance.most,
                         balance.efficiency()),
             {.size = 13});
}

inline void draw(const std::string& directory) {
    if (directory.empty()) return;
    Svg svg(
        900, 500, "Who computes how much of causal attention",
        "Three causal squares of 16 queries by 16 keys, cut over four ranks. Contiguous: rank 0 "
        "has 10 pairs and rank 3 has 58. Zigzag: every rank has 34. Striped: 28 to 40.");
    svg.text(
        20, 52,
        "A row is a query, with the rank that computes it at its left. A column is a key, with "
        "the rank that owns it above.",
        {.size = 13});
    double x = 44;
    for (const Layout layout : layouts) {
        draw_square(svg, x, 116, SequenceCut(layout, ranks, seq), layout_names[int(layout)]);
        x += 292;
    }
    write_picture(directory, "balance.svg", svg);
}

}  // namespace balance_demo

}  // namespace ultrascale::context_parallel
