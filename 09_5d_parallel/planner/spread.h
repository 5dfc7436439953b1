// How the groups of a layout are spread over nodes.
#pragma once

#include "../1_axes.h"
#include "comm/nodes.h"

namespace ultrascale::five_d {

// Returns how the group of this name, with so many ranks, is spread over nodes.
inline Spread spread_of(const std::string& group, int ranks, const Axes& axes, const Nodes& nodes) {
    const int S = axes.shard_size > 0 ? axes.shard_size : axes.dp;
    const auto along = [&](const std::string& axis) {
        if (axis == "replica") return nodes.spread(axes.dp / S, axes.stride("dp") * S);
        return nodes.spread(axis == "dp" ? S : axes.size(axis), axes.stride(axis));
    };
    Spread all{1, 1, 1};
    bool has_axes = false;  // whether the name is one axis, or several: "dp x cp"
    std::vector<std::string> names = axes.order;
    names.push_back("replica");
    for (const std::string& axis : names)
        if ((" " + group + " ").find(" " + axis + " ") != std::string::npos) {
            const Spread one = along(axis);
            all = {all.ranks * one.ranks, all.on_node * one.on_node, one.senders};
            has_axes = true;
        }
    if (has_axes) return all;
    if (group == "down" || group == "up" || group == "tied" || group == "copies") {
        Spread pair = along("pp");  // the slowest of such pairs
        pair.on_node = pair.crosses() ? 1 : ranks, pair.ranks = ranks;
        return pair;
    }
    if (group == "kv") return nodes.spread(ranks, axes.stride("tp"));
    if (group == "ulysses" || group == "inside")
        return nodes.spread(ranks, axes.stride(group == "inside" ? "ep" : "cp"));
    if (group == "ring") return nodes.spread(ranks, axes.stride("cp") * (axes.cp / ranks));
    if (group == "across") return nodes.spread(ranks, axes.stride("ep") * (axes.ep / ranks));
    return nodes.spread(ranks, 1);  // world
}

}  // namespace ultrascale::five_d
