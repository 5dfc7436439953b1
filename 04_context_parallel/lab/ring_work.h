// How much each rank of a ring computes, counted as pairs of a query and a key that it sees. With a
// causal mask this depends on the layout (2_zigzag.h). A hop of the ring lasts as long as its
// busiest rank, so a rank with fewer pairs waits.
//
//     pairs of rank r, for n ranks with L = s / n tokens each     mean / most
//         contiguous    r L^2 + L (L+1) / 2                       n / (2n-1), for long sequences
//         zigzag        s^2 / 2n + s / 2n, on every rank          1
//         striped       n L (L-1) / 2 + (r+1) L                   (s+1) / (s+n)
#pragma once

#include <cmath>

#include "../2_zigzag.h"

namespace ultrascale::context_parallel {

// The attended pairs of a sequence, over the ranks: their mean, and the most of any rank. The work
// is balanced if mean / most is 1.
struct Balance {
    double mean = 0, most = 0;
    double efficiency() const { return most > 0 ? mean / most : 1; }
};
inline Balance balance_of(const std::vector<double>& pairs) {
    Balance balance;
    for (const double rank_pairs : pairs)
        balance.mean += rank_pairs / double(pairs.size()),
            balance.most = std::max(balance.most, rank_pairs);
    return balance;
}

// Returns the pairs of each rank of a cut.
inline std::vector<double> pairs_by_rank(const SequenceCut& cut, const int32_t* document_starts) {
    std::vector<double> pairs(size_t(cut.ranks()), 0.0);
    for (int64_t rank = 0; rank < cut.ranks(); ++rank)
        for (int64_t i = 0; i < cut.length(); ++i) {
            const int64_t at = cut.position(rank, i),
                          from = document_starts ? document_starts[at] : cut.mask().first_key(at);
            pairs[size_t(rank)] += double(cut.mask().key_end(at) - from);
        }
    return pairs;
}
// Returns the pairs for a zig-zag within each document: each is cut into 2n pieces of nearly equal
// size, and rank r takes pieces r and 2n-1-r. (They are only counted, to compare: such attention
// would need a mask for every token.)
inline std::vector<double> pairs_by_document_zigzag(int64_t ranks, int64_t seq,
                                                    const int32_t* document_starts) {
    std::vector<double> pairs(size_t(ranks), 0.0);
    for (int64_t first = 0; first < seq;) {
        int64_t end = first + 1;
        while (end < seq && document_starts[end] == first) ++end;
        for (int64_t piece = 0; piece < 2 * ranks; ++piece) {
            const int64_t rank = std::min(piece, 2 * ranks - 1 - piece), size = end - first;
            const int64_t begin = size * piece / (2 * ranks),
                          stop = size * (piece + 1) / (2 * ranks);
            for (int64_t i = begin; i < stop; ++i) pairs[size_t(rank)] += double(i + 1);
        }
        first = end;
    }
    return pairs;
}

// Returns the pairs by the formula above.
inline double pairs_by_formula(Layout layout, double n, double s, double r) {
    const double L = s / n;
    switch (layout) {
        case Layout::contiguous: return r * L * L + L * (L + 1) / 2;
        case Layout::zigzag: return s * s / (2 * n) + s / (2 * n);
        case Layout::striped: return n * L * (L - 1) / 2 + (r + 1) * L;
    }
    return 0;
}
inline double efficiency_by_formula(Layout layout, double n, double s) {
    return layout == Layout::contiguous ? n / (2 * n - 1)
           : layout == Layout::zigzag   ? 1
                                        : (s + 1) / (s + n);
}

// The work of a ring, in pairs: of every rank at every hop.
struct RingWork {
    std::vector<std::vector<double>> hops;  // by hop, then by rank
    std::vector<double> pairs;              // by rank
    double lasts = 0;  // duration of all hops, each as long as its busiest rank's

    RingWork(const SequenceCut& cut, const int32_t* document_starts = nullptr)
        : pairs(size_t(cut.ranks()), 0.0) {
        const int64_t n = cut.ranks();
        for (int64_t hop = 0; hop < n; ++hop) {
            std::vector<double>& hop_pairs = hops.emplace_back();
            for (int64_t rank = 0; rank < n; ++rank) {
                const int64_t owner = (rank - hop + n) % n;
                hop_pairs.push_back(double(cut.pairs(rank, owner, document_starts)));
                pairs[size_t(rank)] += hop_pairs.back();
            }
            lasts += most(hop);
        }
    }
    double most(int64_t hop) const { return *std::ranges::max_element(hops[size_t(hop)]); }
    double idle(size_t rank) const { return 1 - pairs[rank] / lasts; }
    double efficiency() const { return balance_of(pairs).efficiency(); }
    // Whether all counts equal the formula's, without documents.
    bool is_as_formula(Layout layout, const SequenceCut& cut) const {
        const double n = double(cut.ranks()), s = double(cut.seq());
        double sum = 0;
        bool ok = pairs == pairs_by_rank(cut, nullptr);
        for (size_t r = 0; r < pairs.size(); ++r) {
            ok = ok && pairs[r] == pairs_by_formula(layout, n, s, double(r));
            sum += pairs[r];
        }
        const double formula = efficiency_by_formula(layout, n, s);
        return ok && sum == s * (s + 1) / 2 && std::abs(efficiency() - formula) < 1 / s;
    }
};

}  // namespace ultrascale::context_parallel
