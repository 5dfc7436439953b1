// --demo balance: shows how much each rank of a ring computes with each layout, on 16 tokens that
// can be printed, on longer sequences, and with documents. Checks every count (ring_work.h).
#pragma once

#include "lab/options/cli.h"
#include "lab/report/report.h"
#include "pictures.h"
#include "ring_work.h"

namespace ultrascale::context_parallel {

namespace balance_demo {

// Prints nothing if it is right.
inline bool report_wrong(bool ok, const std::string& what) {
    if (!ok) print("WRONG: " + what);
    return ok;
}

// Prints which rank computes which pair: rows are queries by rank, columns are keys by owner.
inline void print_squares() {
    std::string heads, owners;
    for (const Layout layout : layouts) {
        heads += fmt::format("  {:<28}", layout_names[int(layout)]);
        owners += fmt::format("  {:<28}", "owner  0    1    2    3");
    }
    print(heads.substr(0, heads.find_last_not_of(' ') + 1));
    print(owners.substr(0, owners.find_last_not_of(' ') + 1));
    for (int64_t row = 0; row < seq; ++row) {
        std::string line;
        for (const Layout layout : layouts) {
            const SequenceCut cut(layout, ranks, seq);
            const int64_t rank = row / cut.length(), i = row % cut.length();
            line += fmt::format("  q{:02}    ", cut.position(rank, i));
            for (int64_t column = 0; column < seq; ++column) {
                const int64_t owner = column / cut.length(), j = column % cut.length();
                const bool seen = cut.pairs(rank, owner, {i, i + 1}, {j, j + 1}, nullptr) == 1;
                line += seen ? std::to_string(rank) : ".";
                if (j + 1 == cut.length() && owner + 1 < ranks) line += " ";
            }
            line += "   ";
        }
        print(line.substr(0, line.find_last_not_of(' ') + 1));
    }
}

// Prints the same square's work at each hop of the ring.
inline bool print_hops() {
    std::vector<std::string> lines = {"       ", "  rank "};
    for (int hop = 0; hop < ranks; ++hop) lines.push_back(fmt::format("  hop {}", hop));
    lines.insert(lines.end(), {"  pairs", "  idle "});
    bool ok = true;
    for (const Layout layout : layouts) {
        const SequenceCut cut(layout, ranks, seq);
        const RingWork work(cut);
        const auto add = [&](size_t line, auto rank_value, const std::string& lasts) {
            for (size_t r = 0; r < ranks; ++r) lines[line] += fmt::format("{:>5}", rank_value(r));
            lines[line] += fmt::format("{:>7}   ", lasts);
        };
        lines[0] += fmt::format("    {:<26}", layout_names[int(layout)]);
        add(
            1, [](size_t r) { return r; }, "lasts");
        for (size_t hop = 0; hop < ranks; ++hop)
            add(
                hop + 2, [&](size_t r) { return work.hops[hop][r]; },
                fmt::format("{}", work.most(int64_t(hop))));
        add(
            ranks + 2, [&](size_t r) { return work.pairs[r]; }, fmt::format("{}", work.lasts));
        add(
            ranks + 3, [&](size_t r) { return fmt::format("{:.0f}%", 100 * work.idle(r)); }, "");
        ok = work.is_as_formula(layout, cut) && ok;
    }
    for (const std::string& line : lines) print(line.substr(0, line.find_last_not_of(' ') + 1));
    return report_wrong(ok, "a count is not as its formula");
}

// Prints the balance of longer sequences, on more ranks.
inline bool print_table() {
    const int64_t s = 4096;
    print(
        fmt::format("sequences of {} tokens: pairs of each rank in thousands, mean / most and its "
                    "formula",
                    s));
    print("  ranks   layout       mean / most   formula   pairs");
    bool ok = true;
    for (const int64_t n : {2, 4, 8})
        for (const Layout layout : layouts) {
            const SequenceCut cut(layout, n, s);
            const RingWork work(cut);
            std::string pairs;
            for (const double rank_pairs : work.pairs)
                pairs += fmt::format("{:>6.0f}", rank_pairs / 1e3);
            print(fmt::format("  {:>5}   {:<10}   {:>11.4f}   {:>7.4f}{}", n,
                              layout_names[int(layout)], work.efficiency(),
                              efficiency_by_formula(layout, double(n), double(s)), pairs));
            ok = report_wrong(work.is_as_formula(layout, cut),
                              fmt::format("{} on {} ranks", layout_names[int(layout)], n)) &&
                 ok;
        }
    return ok;
}

// Prints the balance of attention that stays inside documents: a long one and eight short ones.
inline bool print_documents() {
    const int64_t n = 8, longest = 6144, shorter = 256, s = longest + 8 * shorter;
    std::vector<int32_t> starts;
    for (int64_t i = 0; i < s; ++i)
        starts.push_back(int32_t(i < longest ? 0 : i - (i - longest) % shorter));
    print(
        fmt::format("{} ranks, documents of {} and 8 x {} tokens: pairs of each rank in thousands",
                    n, longest, shorter));
    print("  layout                        mean / most   pairs");
    bool ok = true;
    const auto row = [&](const std::string& name, const std::vector<double>& pairs, auto formula) {
        std::string in_words;
        bool right = true;
        for (int64_t r = 0; r < n; ++r) {
            in_words += fmt::format("{:>6.0f}", pairs[size_t(r)] / 1e3);
            right = right && pairs[size_t(r)] == formula(r);
        }
        print(
            fmt::format("  {:<27}   {:>11.4f}{}", name, balance_of(pairs).efficiency(), in_words));
        ok = report_wrong(right, name + ": a count is not as its formula") && ok;
    };
    // The pairs of a chunk of consecutive tokens, all in the long document or all in short ones.
    const auto chunk = [&](int64_t c, int64_t tokens) {
        return double(c * tokens < longest ? c * tokens * tokens + tokens * (tokens + 1) / 2
                                           : tokens * (shorter + 1) / 2);
    };
    // The pairs of a layout within each document.
    const auto within = [&](Layout layout, int64_t r) {
        return pairs_by_formula(layout, double(n), double(longest), double(r)) +
               8 * pairs_by_formula(layout, double(n), double(shorter), double(r));
    };
    const auto formula = [&](Layout layout, int64_t r) {
        return layout == Layout::contiguous ? chunk(r, s / n)
               : layout == Layout::zigzag
                   ? chunk(r, s / n / 2) + chunk(2 * n - 1 - r, s / n / 2)
                   : within(layout, r);  // every document's length is a multiple of n
    };
    for (const Layout layout : layouts) {
        const SequenceCut cut(layout, n, s);
        const std::vector<double> pairs = pairs_by_rank(cut, starts.data());
        row(layout_names[int(layout)], pairs, [&](int64_t r) { return formula(layout, r); });
        ok = report_wrong(RingWork(cut, starts.data()).pairs == pairs, "the sum of hops") && ok;
    }
    row("zigzag within each document", pairs_by_document_zigzag(n, s, starts.data()),
        [&](int64_t r) { return within(Layout::zigzag, r); });
    return ok;
}

}  // namespace balance_demo

// Counts, and needs no other rank. Returns false if a count is wrong.
inline bool demo_balance(const Options& options) {
    using namespace balance_demo;
    print("16 tokens, causal, 4 ranks. A digit: the rank that computes this pair; a dot: hidden");
    print_squares();
    print(
        "\npairs at each hop of the ring; a hop lasts as long as its busiest rank, the others "
        "wait");
    bool ok = print_hops();
    print("");
    ok = print_table() && ok;
    print("");
    ok = print_documents() && ok;
    print(ok ? "All counts are as their formulas: ok" : "WRONG: see above");
    draw(options.svg);
    return ok;
}

}  // namespace ultrascale::context_parallel
