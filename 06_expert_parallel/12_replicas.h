// Experts placed by load (--loads), some of them on several ranks (--replicas R). In each layer all
// ranks wait for the one whose experts have the most rows. If loads (an expert's rows) are known
// from an earlier run, popular experts can be put beside unpopular ones, and the most popular
// copied to R more slots; a slot is a rank's place for an expert. DeepSeek-V3 serves so (EPLB;
// arXiv 2412.19437, section 3.4). Four experts with loads 8, 4, 2, 2 on two ranks:
//
//                  rank 0                    rank 1                    the most over the mean
//     in order     e0 8  e1 4         = 12   e2 2  e3 2         = 4    1.50
//     placed       e0 8  e3 2         = 10   e1 4  e2 2         = 6    1.25
//     R = 2        e0 4  e1 2  e2 2   = 8    e0 4  e1 2  e3 2   = 8    1.00
//
// COPIES share their expert's load. R times, the expert whose copies have the largest load gets one
// more. PLACES: in order of decreasing load, a copy goes to the rank with the least load so far
// that has a free slot and does not hold the expert. So
//
//     load of a rank = sum over its slots of load_e / copies_e
//
// ROWS: copies take turns. Of a rank's rows for an expert, in the order of tokens, row i goes to
// copy (i + rank) mod copies, which no other rank need know. 6_dispatch.h does the rest, with slots
// in place of experts.
//
// GRADIENTS: a copy sees a part of the rows, so the holders of an expert (the ranks that have it)
// add up their gradients, as those of a tied weight do, and all make the same update. Each set of
// holders is a group. A rank sums group by group, in the order of each group's first expert. That
// order is the same on all ranks, so none waits for a sum that another has not reached.
//
// THE PRICE of a copy: the memory of an expert, states of the optimizer included; and in each step
// each of c holders sends 2 (c - 1)/c times the bytes of the expert's gradient.
#pragma once

#include "6_dispatch.h"
#include "comm/mesh.h"
#include "placement.h"

namespace ultrascale::expert_parallel {

// How many copies each of a layer's experts gets: R more than there are experts, but no expert more
// than one on a rank. R is at most E (ranks - 1).
inline std::vector<int64_t> copies_by_load(const std::vector<float>& load, int64_t R,
                                           int64_t ranks) {
    std::vector<int64_t> copies(load.size(), 1);
    // exercise 06.8 begin: R times, copy the expert whose copies have the largest load
    for (; R > 0; --R) {
        const auto load_of_copy = [&](size_t e) {
            return copies[e] < ranks ? double(load[e]) / double(copies[e]) : -1;
        };
        size_t most = 0;
        for (size_t e = 1; e < load.size(); ++e)
            if (load_of_copy(e) > load_of_copy(most)) most = e;
        ++copies[most];
    }
    // exercise 06.8 end
    return copies;
}

inline Placement placed(const std::vector<float>& load, int64_t R, int64_t ranks) {
    return place(load, copies_by_load(load, R, ranks), ranks);
}

// The slots of these choices of a rank's tokens.
inline std::vector<int32_t> slots_of(std::vector<int32_t> choices, const Placement& p, int rank) {
    std::vector<size_t> turn(p.slots.size(), size_t(rank));
    for (int32_t& choice : choices) {
        const std::vector<int32_t>& copies = p.slots[size_t(choice)];
        choice = copies[turn[size_t(choice)]++ % copies.size()];
    }
    return choices;
}

// The group of the ranks that hold an expert: its name; empty if there is one such rank.
inline std::string holders_of(const Placement& p, int64_t expert) {
    std::string name;
    for (const int32_t slot : p.slots[size_t(expert)])
        name += fmt::format("{}{}", name.empty() ? "copies " : "+", p.holder(slot));
    return p.slots[size_t(expert)].size() > 1 ? name : "";
}
inline std::vector<HeldExpert> held_experts(const Placement& p, int rank) {
    std::vector<HeldExpert> held;
    for (const int64_t e : p.held[size_t(rank)]) {
        held.push_back({e});
        if (const std::string group = holders_of(p, e); !group.empty())
            held.back().replica_groups = {group};
    }
    return held;
}
// Makes these groups. All ranks of the mesh call it with the placements of all layers.
inline void add_holders(Mesh& mesh, const std::vector<Placement>& layers) {
    const Communicator& ep = mesh.group("ep");
    for (const Placement& p : layers)
        for (int64_t e = 0; e < int64_t(p.slots.size()); ++e) {
            const std::string name = holders_of(p, e);
            if (name.empty() || mesh.has(name)) continue;
            const bool holds = p.held[size_t(ep.rank())].contains(e);
            mesh.add_copies(ep.split(holds ? 0 : 1, ep.rank(), name));
        }
}

class ReplicaDispatcher : public ExpertDispatcher {
public:
    ReplicaDispatcher(const Communicator& ep, const Placement& placement, int64_t chunks,
                      Stream& stream)
        : ExpertDispatcher(ep, placement.each() * ep.size(), chunks, stream),
          placement_(placement) {}
    // The host waits for the choices here, and for the counts later.
    void permute(const Tensor& x, const Routed& routed) override {
        const auto slots = slots_of(read_counts(routed.experts), placement_, ep_.rank());
        ExpertDispatcher::permute(
            x, {Tensor::from_host<int32_t>(slots, routed.experts.shape(), Memory::workspace),
                routed.weights});
    }

private:
    const Placement& placement_;
};

}  // namespace ultrascale::expert_parallel
