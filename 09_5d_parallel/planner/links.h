// The time of a call, over the links inside a node and the cards between nodes.
//
//     communication   hops * latency + the longer of: bytes sent inside the node / that rate,
//                     bytes over a rank's card (comm/nodes.h has them by algorithm) / its rate
//
// A card's rate is what each rank gets while all ranks of a node send. If ranks share cards, and
// only some of them send, as those at a node's border do in a ring of neighbours, each gets more.
#pragma once

#include <cmath>

#include "comm/nodes.h"

namespace ultrascale::five_d {

// A rank's link, in one direction.
struct LinkRate {
    double bytes_per_second;
    double latency;             // seconds a hop
    double reduced_per_second;  // bytes, if what arrives is added up
    double message_latency;     // seconds of a message whose sender computes meanwhile
    // Seconds that a second of communication adds to the computation under it, from 0 to 1: for a
    // collective, and for a message to a neighbour. NCCL's kernels take multiprocessors, MPI takes
    // a core.
    double collective_slows = 0, message_slows = 0;
};

struct Links {
    Nodes nodes;
    LinkRate inside, between;

    // The link of a group with this spread, for its latency and for the slowdown by communication.
    const LinkRate& of(const Spread& group) const { return group.crosses() ? between : inside; }

    // Returns the seconds of a call on a tensor of so many bytes (S in comm.h). send_recv goes to
    // the next rank of the group, which is on another node if the group crosses nodes.
    double call(Collective kind, double bytes, const Spread& group) const {
        const double n = group.ranks;
        if (n <= 1 || bytes == 0) return 0;
        if (kind == Collective::send_recv) return of(group).message_latency + hop(bytes, group);
        // Calls are rings, except for an all-reduce, for which NCCL's trees send as much in fewer
        // hops. In an exchange all messages set out at once.
        const double rounds = kind == Collective::all_reduce ? 2 : 1,
                     hops = nodes.crossing == Crossing::exchange ? rounds
                            : kind == Collective::all_reduce     ? 2 * std::ceil(std::log2(n))
                                                                 : n - 1;
        const auto phase = [&](Collective part, bool added) {
            const auto rate = [&](const LinkRate& link) {
                return added ? link.reduced_per_second : link.bytes_per_second;
            };
            // In a ring, all data pass through every rank.
            const bool direct =
                nodes.crossing == Crossing::exchange || kind == Collective::all_to_all;
            const double near = direct ? (group.on_node - 1) / n * bytes : (n - 1) / n * bytes;
            return std::max(near / rate(inside),
                            bytes_over_card(part, bytes, group, nodes.crossing) / rate(between));
        };
        double seconds = hops * of(group).latency;
        if (kind == Collective::all_reduce || kind == Collective::reduce_scatter)
            seconds += phase(Collective::reduce_scatter, true);
        if (kind != Collective::reduce_scatter)
            seconds += phase(kind == Collective::all_to_all ? kind : Collective::all_gather, false);
        return seconds;
    }
    // Returns the seconds of a message to a neighbour, without latency, if all such groups send
    // one.
    double hop(double bytes, const Spread& group) const {
        if (!group.crosses()) return bytes / inside.bytes_per_second;
        const double ranks = nodes.ranks, cards = std::min<double>(nodes.cards_of_node(), ranks),
                     sharing = std::clamp(group.senders, cards, ranks);
        return bytes / (between.bytes_per_second * ranks / sharing);
    }
};

}  // namespace ultrascale::five_d
