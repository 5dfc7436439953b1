// --demo route: eight tokens on two ranks, four experts, two choices a token, step by step: scores,
// choices and weights; rows sorted by expert; counts; the rows that each rank sends to each; the
// experts' outputs; the way back, and each token's weighted sum. (The program applies the weights
// inside the experts, which is equivalent; 5_experts.h says why.)
//
// Row n of x is (n, 1), and expert e multiplies by e + 1, so every number can be followed: a
// token's second number ends as the weighted mean of its experts' factors.
//
// With exactly two ranks, each plays one of the two and really sends its rows. With any other
// number, every rank plays both, and rank 0 prints them.
#pragma once

#include <cmath>

#include "../2_route.h"
#include "../kernels/ops_experts.h"
#include "core/ops.h"
#include "lab/report/report.h"

namespace ultrascale::expert_parallel {

namespace route_demo {

inline constexpr int ranks = 2, tokens = 4, experts = 4, k = 2, here = experts / ranks;
inline const ops::RouterSettings settings{.top_k = k};

inline float logit(int token, int expert) {
    return float((token * 7 + expert * 5 + token * expert * 3) % 11) / 4;
}
struct Row {
    int token;
    float x[2];
};
using Rows = std::vector<Row>;

inline std::string names(const Rows& rows) {
    std::string text;
    for (const Row& row : rows) text += fmt::format(" x{}", row.token);
    return text.empty() ? " nothing" : text;
}

class RankOfRoute {
public:
    explicit RankOfRoute(int rank) : rank_(rank) {
        std::vector<float> logits;
        for (int n = 0; n < tokens; ++n)
            for (int e = 0; e < experts; ++e) logits.push_back(logit(first() + n, e));
        for (int n = 0; n < tokens; ++n)
            routes_.push_back(route_token({&logits[size_t(n * experts)], experts}, {}, settings));
        // Sorts all choices by expert; the sort is stable.
        for (int e = 0; e < experts; ++e)
            for (int n = 0; n < tokens; ++n)
                for (int j = 0; j < k; ++j)
                    if (routes_[size_t(n)].experts[size_t(j)] == e) {
                        row_map_[n * k + j] = int(sorted_.size());
                        sorted_.push_back({first() + n, {float(first() + n), 1}});
                        ++counts_[e];
                    }
        agrees_ = agrees(logits);
    }
    int rank() const { return rank_; }
    bool agrees_with_operations() const { return agrees_; }

    std::string scores() const {
        std::string text = fmt::format("rank {}    e0   e1   e2   e3   chosen, weights\n", rank_);
        for (int n = 0; n < tokens; ++n) {
            text += fmt::format("x{}    ", first() + n);
            for (double s : routes_[size_t(n)].scores) text += fmt::format(" {:.2f}", s);
            for (int j = 0; j < k; ++j)
                text += fmt::format("   e{} {:.2f}", routes_[size_t(n)].experts[size_t(j)],
                                    routes_[size_t(n)].weights[size_t(j)]);
            text += "\n";
        }
        return text;
    }
    std::string sorted() const {
        std::string text = fmt::format("rank {}\n", rank_);
        for (int e = 0; e < experts; ++e)
            text += fmt::format("e{}: {},{}\n", e, format_count(counts_[e], "row"),
                                names(rows_for(e, e + 1)));
        return text;
    }
    std::string sends() const {
        std::string text;
        for (int to = 0; to < ranks; ++to)
            text += fmt::format("rank {} to rank {}:{}\n", rank_, to, names(for_rank(to)));
        return text;
    }
    Rows for_rank(int to) const { return rows_for(to * here, (to + 1) * here); }
    std::vector<int> counts_for(int to) const {
        return {counts_ + to * here, counts_ + (to + 1) * here};
    }

    // Takes rows and counts from each rank, sorts the rows by expert, computes, and restores the
    // order in which they came.
    std::string compute(const std::vector<Rows>& from,
                        const std::vector<std::vector<int>>& counts) {
        std::string text = fmt::format("rank {}\n", rank_);
        results_ = from;
        for (int g = 0; g < here; ++g) {
            const int e = rank_ * here + g;
            Rows in;
            for (int r = 0; r < ranks; ++r) {
                int begin = 0;
                for (int before = 0; before < g; ++before)
                    begin += counts[size_t(r)][size_t(before)];
                for (int i = begin; i < begin + counts[size_t(r)][size_t(g)]; ++i) {
                    in.push_back(from[size_t(r)][size_t(i)]);
                    for (float& x : results_[size_t(r)][size_t(i)].x) x *= float(e + 1);
                }
            }
            text += fmt::format("e{} times {}:{}\n", e, e + 1, names(in));
        }
        return text;
    }
    const Rows& result_for(int rank) const { return results_[size_t(rank)]; }

    // Takes the rows that came back, rank after rank, in the order in which they were sent.
    std::string combine(const Rows& back, bool& ok) const {
        std::string text = fmt::format("rank {}\n", rank_);
        for (int n = 0; n < tokens; ++n) {
            const Route& route = routes_[size_t(n)];
            float y[2] = {0, 0};
            double factor = 0;
            text += fmt::format("y{} =", first() + n);
            for (size_t j = 0; j < k; ++j) {
                const Row& row = back[size_t(row_map_[size_t(n * k) + j])];
                for (int i = 0; i < 2; ++i) y[i] += float(route.weights[j]) * row.x[i];
                factor += route.weights[j] * (route.experts[j] + 1);
                text += fmt::format("{} {:.2f}*({:g}, {:g})", j == 0 ? "" : " +", route.weights[j],
                                    row.x[0], row.x[1]);
            }
            const bool right = std::abs(double(y[0]) - factor * (first() + n)) < 1e-5 &&
                               std::abs(double(y[1]) - factor) < 1e-5;
            ok = ok && right;
            text += fmt::format(" = ({:.2f}, {:.2f}) {}\n", y[0], y[1], right ? "ok" : "WRONG");
        }
        return text;
    }

private:
    int first() const { return rank_ * tokens; }
    Rows rows_for(int begin, int end) const {
        int first = 0, last = 0;
        for (int e = 0; e < end; ++e) (e < begin ? first : last) += counts_[e];
        return {sorted_.begin() + first, sorted_.begin() + first + last};
    }
    // Whether the operations that training uses make the same choices and sort alike.
    bool agrees(const std::vector<float>& logits) const {
        const auto empty = [](Shape shape, DType dtype) {
            return Tensor::empty(std::move(shape), dtype, Memory::workspace);
        };
        const Tensor in = Tensor::from_host<float>(logits, {tokens, experts}, Memory::workspace),
                     chosen = empty({tokens, k}, DType::int32),
                     weights = empty({tokens, k}, DType::fp32),
                     scores = empty({tokens, experts}, DType::fp32),
                     counts = empty({experts}, DType::int32),
                     order = empty({tokens * k}, DType::int32),
                     row_map = empty({tokens, k}, DType::int32);
        ops::router_forward(chosen, weights, scores, in, {}, settings);
        ops::sort_by_expert(counts, order, row_map, chosen);
        const std::vector<int32_t> e = chosen.to_host<int32_t>(), p = row_map.to_host<int32_t>();
        const std::vector<float> w = weights.to_host<float>();
        bool same = true;
        for (size_t i = 0; i < e.size(); ++i)
            same = same && e[i] == routes_[i / k].experts[i % k] && p[i] == row_map_[i] &&
                   std::abs(double(w[i]) - routes_[i / k].weights[i % k]) < 1e-6;
        return same;
    }

    int rank_;
    std::vector<Route> routes_;
    Rows sorted_;
    int row_map_[tokens * k] = {}, counts_[experts] = {};
    std::vector<Rows> results_;
    bool agrees_ = false;
};

inline void print_both(const std::vector<std::string>& texts) {
    std::vector<std::string> left, right;
    for (auto [text, lines] : {std::pair{texts[0], &left}, {texts[1], &right}})
        for (size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1)
            lines->push_back(text.substr(at, end - at));
    for (size_t i = 0; i < left.size(); ++i) print(fmt::format("  {:<48}{}", left[i], right[i]));
}

}  // namespace route_demo

// All ranks call it. Returns false if any rank's result is wrong.
inline bool demo_route(const Communicator& world) {
    using namespace route_demo;
    const bool real = world.size() == ranks;
    std::vector<RankOfRoute> ours;  // the ranks that this process plays
    for (int r = 0; r < ranks; ++r)
        if (!real || r == world.rank()) ours.emplace_back(r);
    const auto both = [&](auto describe) {
        std::vector<std::string> texts;
        for (RankOfRoute& rank : ours) texts.push_back(describe(rank));
        return real ? world.gather_strings(texts[0]) : texts;
    };

    print("Eight tokens, four experts, two choices each. Rank r has tokens 4r to 4r+3 and experts");
    print("2r and 2r+1. Row n of x is (n, 1); expert e multiplies by e + 1.");
    print(real ? "The two ranks really send their rows."
               : fmt::format("{}, not 2: rank 0 shows both, and nothing is sent.",
                             format_count(world.size(), "rank")));
    print("\n1. The router: scores are the softmax of logits, the two best are chosen, and their");
    print("   weights are divided by their sum.");
    print_both(both([](const RankOfRoute& rank) { return rank.scores(); }));
    print("\n2. A row for each choice, sorted by expert, of one expert in the order of tokens.");
    print_both(both([](const RankOfRoute& rank) { return rank.sorted(); }));
    print(
        "\n3. The ranks exchange the counts, and then know how many rows will come; then the "
        "rows.");
    print_both(both([](const RankOfRoute& rank) { return rank.sends(); }));

    // from[r]: the rows that each of our ranks gets from rank r; counts likewise.
    std::vector<std::vector<Rows>> from(ours.size(), std::vector<Rows>(ranks));
    std::vector<std::vector<std::vector<int>>> counts(ours.size(),
                                                      std::vector<std::vector<int>>(ranks));
    const auto exchange = [&](Rows to_0, Rows to_1, size_t from_0, size_t from_1) {
        std::vector<float> out;
        for (const Rows* rows : {&to_0, &to_1})
            for (const Row& row : *rows)
                out.insert(out.end(), {float(row.token), row.x[0], row.x[1]});
        const Tensor send = Tensor::from_host<float>(out, {int64_t(out.size())}, Memory::workspace),
                     got = Tensor::empty({int64_t(3 * (from_0 + from_1))}, DType::fp32,
                                         Memory::workspace);
        world.all_to_all(got, send, {int64_t(3 * to_0.size()), int64_t(3 * to_1.size())},
                         {int64_t(3 * from_0), int64_t(3 * from_1)});
        std::vector<Rows> came(ranks);
        const std::vector<float> x = got.to_host<float>();
        for (size_t i = 0; i < from_0 + from_1; ++i)
            came[i >= from_0].push_back({int(x[3 * i]), {x[3 * i + 1], x[3 * i + 2]}});
        return came;
    };
    if (real) {
        const RankOfRoute& me = ours[0];
        std::vector<int32_t> mine;
        for (int to = 0; to < ranks; ++to)
            for (int n : me.counts_for(to)) mine.push_back(n);
        const Tensor send = Tensor::from_host<int32_t>(mine, {experts}, Memory::workspace),
                     got = Tensor::empty({experts}, DType::int32, Memory::workspace);
        world.all_to_all(got, send);
        const std::vector<int32_t> n = got.to_host<int32_t>();
        counts[0] = {{n[0], n[1]}, {n[2], n[3]}};
        from[0] =
            exchange(me.for_rank(0), me.for_rank(1), size_t(n[0] + n[1]), size_t(n[2] + n[3]));
    } else {
        for (int to = 0; to < ranks; ++to)
            for (int r = 0; r < ranks; ++r) {
                from[size_t(to)][size_t(r)] = ours[size_t(r)].for_rank(to);
                counts[size_t(to)][size_t(r)] = ours[size_t(r)].counts_for(to);
            }
    }
    print("\n4. Each expert takes its rows from all ranks: in the order of all tokens.");
    size_t next = 0;
    print_both(both([&](RankOfRoute& rank) {
        const size_t i = next++;
        return rank.compute(from[i], counts[i]);
    }));

    print(
        "\n5. The results go back the same way, and each token adds its two, times their weights.");
    std::vector<Rows> back(ours.size());
    if (real) {
        const RankOfRoute& me = ours[0];
        for (const Rows& rows : exchange(me.result_for(0), me.result_for(1), me.for_rank(0).size(),
                                         me.for_rank(1).size()))
            back[0].insert(back[0].end(), rows.begin(), rows.end());
    } else {
        for (int r = 0; r < ranks; ++r)
            for (const RankOfRoute& of : ours) {
                const Rows& rows = of.result_for(r);
                back[size_t(r)].insert(back[size_t(r)].end(), rows.begin(), rows.end());
            }
    }
    bool ok = true;
    next = 0;
    for (const std::string& text :
         both([&](const RankOfRoute& rank) { return rank.combine(back[next++], ok); }))
        for (size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1)
            print("  " + text.substr(at, end - at));
    for (const RankOfRoute& rank : ours) ok = ok && rank.agrees_with_operations();
    ok = on_all_ranks(world, ok);
    print(ok ? "\nThe operations that training uses choose and sort alike."
             : "\nWRONG: a sum differs, or the operations that training uses choose differently.");
    return ok;
}

}  // namespace ultrascale::expert_parallel
