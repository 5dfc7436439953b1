// Which ranks hold which experts of a layer, if these are placed by load (12_replicas.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "core/error.h"

namespace ultrascale::expert_parallel {

// Where a layer's experts are. Slots are numbered by rank, and within a rank by expert.
struct Placement {
    std::vector<std::set<int64_t>> held;      // by each rank: equally many experts
    std::vector<double> load;                 // of each rank
    std::vector<std::vector<int32_t>> slots;  // of each expert: those of its copies
    int64_t each() const { return int64_t(held[0].size()); }
    int holder(int32_t slot) const { return int(slot / each()); }  // its rank
};

// Places `copies` of each of E experts, of which none has more copies than there are ranks. The
// number of ranks divides that of all copies. In order of decreasing load, a copy goes to the rank
// with the least load so far among those that have a free slot and do not hold the expert.
inline Placement place(const std::vector<float>& load, const std::vector<int64_t>& copies,
                       int64_t ranks) {
    struct Copy {
        int64_t expert;
        double load;
        size_t rank;
    };
    std::vector<Copy> all;
    for (size_t e = 0; e < load.size(); ++e)
        all.insert(all.end(), size_t(copies[e]), {int64_t(e), load[e] / double(copies[e]), 0});
    check(all.size() % size_t(ranks) == 0 && *std::ranges::max_element(copies) <= ranks,
          "place: ranks have equally many slots, and no expert twice");
    std::ranges::stable_sort(all, std::greater(), &Copy::load);
    const size_t n = size_t(ranks);
    Placement p{std::vector<std::set<int64_t>>(n), std::vector<double>(n), {}};
    const auto put = [&](Copy& copy, size_t rank) {
        p.held[rank].insert(copy.expert), p.load[rank] += copy.load, copy.rank = rank;
    };
    for (auto copy = all.begin(); copy != all.end(); ++copy) {
        size_t best = n, vacant = n;
        for (size_t r = 0; r < n; ++r) {
            if (p.held[r].size() == all.size() / n) continue;
            vacant = r;
            if (p.held[r].contains(copy->expert)) continue;
            if (best == n || p.load[r] < p.load[best]) best = r;
        }
        if (best == n) {  // ranks with free slots hold it: another rank's lightest copy moves there
            auto other = copy;
            do --other;
            while (p.held[other->rank].contains(copy->expert) ||
                   p.held[vacant].contains(other->expert));
            best = other->rank;
            p.held[best].erase(other->expert), p.load[best] -= other->load;
            put(*other, vacant);
        }
        put(*copy, best);
    }
    p.slots.resize(load.size());
    int32_t slot = 0;
    for (const std::set<int64_t>& experts : p.held)
        for (const int64_t e : experts) p.slots[size_t(e)].push_back(slot++);
    return p;
}

}  // namespace ultrascale::expert_parallel
