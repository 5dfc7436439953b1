// ZeRO-1 for Muon (--plain --optimizer muon). AdamW updates each number alone, so 1_plain.h cuts
// the model wherever a part ends. Muon's update of a matrix is made of products of the whole matrix
// (common/model/muon.h), and a rank with a piece of the matrix cannot compute that piece's update.
// So each part gets as many numbers as before, but whole matrices:
//
//     1_plain.h    [ embedding . . | . . q  k  v  o  g|a t e  u p  d o w|n . . . . . . . ]
//                     rank 0              rank 1           rank 2            rank 3
//     here         [ embedding . . | . norms  o  q k v| gate  up         | down  o  q k v  ]
//
// Everything else is as in 1_plain.h: a reduce-scatter, the update of this rank's part, an
// all-gather. A rank orthogonalizes only its own matrices, and holds only their momentum. What
// AdamW updates comes first and may be cut; the largest matrix then goes to the part with most room
// left, then the next one, and so on. If a matrix does not fit, all parts grow, and the others end
// in padding: much of it if a rank has few matrices.
//
// Pipeline parallelism leaves matrices whole, so Muon works there as on one device (chapter 05).
// Tensor parallelism cuts every matrix, and its ranks would have to gather it before an update.
#pragma once

#include <algorithm>

#include "1_plain.h"
#include "model/muon.h"

namespace ultrascale::zero {

// Parameters that must lie side by side, because forward multiplies by them as one matrix: q, k, v;
// gate, up; each other one alone. In the model's order.
inline std::vector<std::vector<Parameter*>> neighbours(const ParameterList& parameters) {
    std::vector<std::vector<Parameter*>> all;
    for (const auto& p : parameters) {
        const bool follows = p->name.ends_with(".k_proj.weight") ||
                             p->name.ends_with(".v_proj.weight") ||
                             p->name.ends_with(".up_proj.weight");
        if (!follows) all.emplace_back();
        all.back().push_back(p.get());
    }
    return all;
}

struct WholeMatrices {
    int64_t part;  // numbers in a rank's part
    std::vector<Place> places;
};
// Deals the parameters to n parts, so that no border is inside a matrix that Muon updates.
inline WholeMatrices deal_matrices(const ParameterList& parameters, int n) {
    std::vector<std::vector<Parameter*>> matrices, others;
    for (const std::vector<Parameter*>& together : neighbours(parameters))
        (Muon::updates(*together[0]) ? matrices : others).push_back(together);
    const int64_t grain = 8, all = parameters.local_numel();
    int64_t part = (all + n * grain - 1) / (n * grain) * grain;
    // exercise 02.8 begin: the largest first, each to the part with most room, which may grow
    std::ranges::stable_sort(matrices, std::greater(),
                             [](const auto& m) { return local_numel(m); });
    for (;;) {
        std::vector<Place> places;
        int64_t at = 0;
        const auto place = [&](const std::vector<Parameter*>& together, int64_t& at) {
            for (Parameter* p : together) places.push_back({p, at}), at += p->local_numel();
        };
        for (const std::vector<Parameter*>& together : others) place(together, at);
        std::vector<int64_t> ends(size_t(n), 0);  // of what lies in each part so far
        for (int64_t r = 0; r < n; ++r) ends[size_t(r)] = std::clamp(at, r * part, (r + 1) * part);
        int64_t lacking = 0;
        for (const std::vector<Parameter*>& together : matrices) {
            const auto room = [&](size_t r) { return (int64_t(r) + 1) * part - ends[r]; };
            size_t most = 0;
            for (size_t r = 1; r < ends.size(); ++r)
                if (room(r) > room(most)) most = r;
            place(together, ends[most]);
            lacking = std::max(lacking, -room(most));
        }
        if (lacking == 0) return {part, places};
        part += (lacking + grain - 1) / grain * grain;
    }
    // exercise 02.8 end
}

class MuonZero1 : public PlainZero1 {
public:
    MuonZero1(ParameterList& parameters, const Communicator& ranks, const Options& options)
        : PlainZero1(parameters, ranks, options) {
        const WholeMatrices dealt = deal_matrices(parameters, ranks.size());
        part_ = dealt.part, places_ = dealt.places;
    }
};

}  // namespace ultrascale::zero
