// --demo ring: ring attention with one head on sixteen tokens, shared by four ranks with four
// tokens each (as many as in the playbook's picture of the causal mask). Queries stay; keys and
// values go to the next rank after every hop. Each rank merges what it gets from the keys that it
// holds (5_partial_sums.h) and ends with plain attention's output.
//
// The first number of value i is i / 10, the second one i % 2. So an output shows which tokens the
// query looks at: the mean of their places over 10, and how much of its weight is on odd ones.
//
// On exactly four ranks each is one of the four and really sends its keys. On any other number
// every rank plays all four, and rank 0 shows them.
#pragma once

#include <cmath>

#include "../5_partial_sums.h"
#include "lab/report/report.h"

namespace ultrascale::context_parallel {

namespace ring_demo {

inline constexpr int ranks = 4, seq = 16, D = 2;

// Queries, keys or values of some tokens, (1, tokens, 1, D), row by row.
using Rows = std::vector<float>;
inline float query(int64_t i, int64_t d) { return float(d == 0 ? (i + 1) % 3 : i * 5 % 4) - 1; }
inline float key(int64_t i, int64_t d) { return float(d == 0 ? i % 4 : i * 3 % 5) - 2; }
inline float value(int64_t i, int64_t d) { return d == 0 ? float(i) / 10 : float(i % 2); }
inline Tensor tensor_of(float (*number)(int64_t, int64_t), Range tokens) {
    Rows rows;
    for (int64_t i = tokens.begin; i < tokens.end; ++i)
        for (int d = 0; d < D; ++d) rows.push_back(number(i, d));
    return Tensor::from_host<float>(rows, {1, tokens.size(), 1, D}, Memory::workspace);
}

// Prints the lines of several ranks side by side.
inline void print_side_by_side(const std::vector<std::string>& texts, size_t width) {
    std::vector<std::string> lines;
    for (size_t r = 0; r < texts.size(); ++r) {
        size_t i = 0;
        for (size_t at = 0; at < texts[r].size(); ++i) {
            const size_t end = texts[r].find('\n', at);
            if (lines.size() <= i) lines.emplace_back();
            lines[i].resize(2 + r * width, ' ');
            lines[i] += texts[r].substr(at, end - at);
            at = end + 1;
        }
    }
    for (const std::string& line : lines) print(line);
}

// One of the four ranks: its queries, the keys and values that it holds, and its result so far.
class RankOfRing {
public:
    RankOfRing(const SequenceCut& cut, int rank)
        : cut_(cut),
          rank_(rank),
          mine_{rank * cut.length(), (rank + 1) * cut.length()},
          q_(tensor_of(query, mine_)),
          held_(KeysValues::tokens_of(tensor_of(key, mine_), tensor_of(value, mine_),
                                      {0, cut.length()})),
          sum_(q_, DType::fp32),
          most_(size_t(cut.length()), -INFINITY) {}

    int rank() const { return rank_; }
    const KeysValues& held() const { return held_; }
    void hold(KeysValues next) { held_ = std::move(next); }

    // Attends to the keys that it holds, which belong to `owner`. Returns the scores.
    std::string attend(int owner) {
        const std::vector<Block> blocks = cut_.blocks(rank_, owner, {0, cut_.length()});
        for (const Block& block : blocks) sum_.add(0, block, held_.k[0], held_.v[0], {});
        const Rows q = q_.to_host<float>(), k = held_.k[0].to_host<float>();
        std::string text = fmt::format("rank {}: q{} x k{}\n", rank_, rank_, owner);
        for (int64_t i = 0; i < mine_.size(); ++i) {
            text += fmt::format("q{:02}", mine_.begin + i);
            for (int64_t j = 0; j < mine_.size(); ++j) {
                float score = 0;
                for (int d = 0; d < D; ++d)
                    score += q[size_t(i * D + d)] * k[size_t(j * D + d)] / std::sqrt(float(D));
                const bool hidden = owner * mine_.size() + j > mine_.begin + i;
                if (!hidden) most_[size_t(i)] = std::max(most_[size_t(i)], score);
                // (+ 0 makes a negative zero positive.)
                text += hidden ? "    ." : fmt::format("{:>5.1f}", score + 0.0f);
            }
            text += "\n";
        }
        changed_ = !blocks.empty();
        return text;
    }
    // Returns the largest score, the sum of exp(score - largest) and the output of each row so far.
    std::string so_far() const {
        if (!changed_) return "sees none of them:\nas before\n";
        const Rows o = output(), lse = sum_.lse().to_host<float>();
        std::string text = "     max  sum output\n";
        for (size_t i = 0; i < most_.size(); ++i)
            text +=
                fmt::format("q{:02}{:>5.1f}{:>#5.3g} {:.2f} {:.2f}\n", mine_.begin + int64_t(i),
                            most_[i] + 0.0f, std::exp(lse[i] - most_[i]), o[i * D], o[i * D + 1]);
        return text;
    }
    // Prints each row beside plain attention's over all tokens. Sets ok to false if they differ.
    std::string compare(const Rows& plain, bool& ok) const {
        const Rows o = output();
        std::string text;
        for (int64_t i = 0; i < mine_.size(); ++i) {
            const float *ring = &o[size_t(i * D)], *whole = &plain[size_t((mine_.begin + i) * D)];
            bool equal = true;
            for (int d = 0; d < D; ++d) equal = equal && std::abs(ring[d] - whole[d]) <= 1e-6f;
            ok = ok && equal;
            text +=
                fmt::format("q{:02} ring {:.3f} {:.3f}  plain {:.3f} {:.3f}  {}\n", mine_.begin + i,
                            ring[0], ring[1], whole[0], whole[1], equal ? "ok" : "WRONG");
        }
        return text;
    }

private:
    Rows output() const { return sum_.output().to_host<float>(); }

    SequenceCut cut_;
    int rank_;
    Range mine_;
    Tensor q_;
    KeysValues held_;
    PartialAttention sum_;
    std::vector<float> most_;  // the scores so far
    bool changed_ = false;
};

inline Rows plain_attention() {
    const Range all{0, seq};
    const Tensor q = tensor_of(query, all),
                 o = Tensor::empty(q.shape(), DType::fp32, Memory::workspace),
                 lse = Tensor::empty({1, 1, seq}, DType::fp32, Memory::workspace);
    ops::attention_forward(o, lse, q, tensor_of(key, all), tensor_of(value, all), {});
    return o.to_host<float>();
}

}  // namespace ring_demo

// All ranks call it. Returns false if any rank's result is wrong.
inline bool demo_ring(const Communicator& world) {
    using namespace ring_demo;
    const SequenceCut cut(Layout::contiguous, ranks, seq);
    const RingPlan plan(cut, false, nullptr);
    const bool real = world.size() == ranks;
    std::vector<RankOfRing> ours;  // those of the four ranks that this process plays
    for (int r = 0; r < ranks; ++r)
        if (!real || r == world.rank()) ours.emplace_back(cut, r);
    // Calls describe(rank) for all four, and returns what they say.
    const auto all = [&](auto describe) {
        std::vector<std::string> texts;
        for (RankOfRing& rank : ours) texts.push_back(describe(rank));
        return real ? world.gather_strings(texts[0]) : texts;
    };

    print(
        "ring attention: 16 tokens, causal; rank r has the queries qr, the keys kr and values vr");
    print("of tokens 4r to 4r+3. A dot: the key is hidden, because it comes after the query.");
    print("A row's log-sum-exp, by which the ranks merge (1_ring.h), is its max + log(its sum).");
    print(real ? "The four ranks really send their keys and values."
               : fmt::format("{}, not 4: rank 0 shows all four, and nothing is sent.",
                             format_count(world.size(), "rank")));
    for (int hop = 0; hop < ranks; ++hop) {
        std::string under_way;
        for (int r = 0; r < ranks; ++r)
            under_way +=
                fmt::format("{}k{} v{} from {} to {}", r == 0 ? "" : ", ", plan.owner(0, r, hop),
                            plan.owner(0, r, hop), r, plan.to(0, r));
        print(fmt::format(
            "\nhop {}: {}", hop,
            hop < plan.last_hop() ? "meanwhile go " + under_way : "nothing is sent any more"));
        print_side_by_side(
            all([&](RankOfRing& rank) { return rank.attend(plan.owner(0, rank.rank(), hop)); }),
            25);
        print_side_by_side(all([](RankOfRing& rank) { return rank.so_far(); }), 25);
        if (hop == plan.last_hop()) break;
        if (real) {
            std::vector<Transfer> transfers;
            KeysValues next = KeysValues::empty(ours[0].held().k[0], cut.length(), DType::fp32,
                                                Memory::communication);
            ours[0].held().send(transfers, plan.to(0, world.rank()));
            next.receive(transfers, plan.from(0, world.rank()));
            world.send_recv(std::move(transfers));
            ours[0].hold(std::move(next));
        } else {
            std::vector<KeysValues> sent;
            for (const RankOfRing& rank : ours) sent.push_back(rank.held());
            for (int r = 0; r < ranks; ++r)
                ours[size_t(plan.to(0, r))].hold(std::move(sent[size_t(r)]));
        }
    }

    print("\nThe ring's output, and plain attention's over all 16 tokens:");
    const Rows plain = plain_attention();
    bool ok = true;
    const std::vector<std::string> texts =
        all([&](const RankOfRing& rank) { return rank.compare(plain, ok); });
    print_side_by_side({texts[0], texts[1]}, 49);
    print_side_by_side({texts[2], texts[3]}, 49);
    ok = on_all_ranks(world, ok);
    print(ok ? "Every row is equal to plain attention's within 1e-6: ok" : "WRONG");
    return ok;
}

}  // namespace ultrascale::context_parallel
