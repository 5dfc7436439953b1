// The ranks as a grid of five axes, and which links each axis crosses.
//
//     rank = (((pp x DP + dp) x EP + ep) x CP + cp) x TP + tp        for --order tp,cp,ep,dp,pp
//
// The first axis of --order has neighbouring ranks, which share a machine and its fastest links. So
// it should be the axis that communicates most: tensor parallelism, several times a layer and with
// nothing to hide it. Then come context parallelism and experts, in every layer but partly hidden;
// then the sums of gradients, once a step; and last the pipeline, whose messages are the smallest.
#pragma once

#include <algorithm>

#include "comm/mesh.h"
#include "core/error.h"
#include "core/memory.h"

// This chapter combines the others, so it uses their names without a prefix.
namespace ultrascale {
namespace data_parallel {}
namespace zero {}
namespace tensor_parallel {}
namespace context_parallel {}
namespace pipeline {}
namespace expert_parallel {}
namespace mixed_precision {}
}  // namespace ultrascale

namespace ultrascale::five_d {

using namespace data_parallel;
using namespace zero;
using namespace tensor_parallel;
using namespace context_parallel;
using namespace pipeline;
using namespace expert_parallel;
using namespace mixed_precision;

struct Axes {
    int dp = 0, tp = 1, cp = 1, ep = 1, pp = 1;  // dp 0: all ranks that are left
    int shard_size = 0;  // ranks of dp that share a set of ZeRO's shards (02); 0: all
    std::vector<std::string> order = {"tp", "cp", "ep", "dp", "pp"};  // neighbours first

    static int Axes::*named(const std::string& axis) {
        return axis == "dp"   ? &Axes::dp
               : axis == "tp" ? &Axes::tp
               : axis == "cp" ? &Axes::cp
               : axis == "ep" ? &Axes::ep
                              : &Axes::pp;
    }
    int size(const std::string& axis) const { return this->*named(axis); }
    // Returns the distance in ranks between two neighbours along an axis.
    int stride(const std::string& axis) const {
        // exercise 09.1 begin: the product of the axes that come before it in the order
        int ranks = 1;
        for (const std::string& inner : order) {
            if (inner == axis) break;
            ranks *= size(inner);
        }
        return ranks;
        // exercise 09.1 end
    }

    // Sets dp, or checks it. Throws UserError if the product of the axes is not `ranks`.
    void complete(int ranks) {
        int64_t others = 1;  // does not grow beyond ranks * 2^20
        for (const int size : {tp, cp, ep, pp})
            if (others <= ranks) others *= size;
        if (ranks % others != 0 || (dp > 0 && dp * others != ranks))
            user_error("--tp {} --cp {} --ep {} --pp {}{}: they do not make {}", tp, cp, ep, pp,
                       dp > 0 ? fmt::format(" --dp {}", dp) : "", format_count(ranks, "rank"));
        dp = int(ranks / others);
    }
    // Sets the order of the axes: "tp,cp,ep,dp,pp" in any order.
    void set_order(const std::string& words) {
        std::vector<std::string> given;
        for (size_t at = 0; at <= words.size();) {
            const size_t end = std::min(words.find(',', at), words.size());
            given.push_back(words.substr(at, end - at));
            at = end + 1;
        }
        if (!std::ranges::is_permutation(given, order))
            user_error("--order {}: give each of tp, cp, ep, dp, pp once, neighbours first", words);
        order = given;
    }

    std::vector<Mesh::Axis> outermost_first() const {
        std::vector<Mesh::Axis> axes;
        for (auto axis = order.rbegin(); axis != order.rend(); ++axis)
            axes.push_back({*axis, size(*axis)});
        return axes;
    }
};

// "pp 2 x dp 2 x tp 2": the axes that have more than one rank.
inline std::string describe(const Axes& axes) {
    std::string text;
    for (const Mesh::Axis& axis : axes.outermost_first())
        if (axis.size > 1)
            text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis.name, axis.size);
    return text.empty() ? "one rank" : text;
}

}  // namespace ultrascale::five_d
