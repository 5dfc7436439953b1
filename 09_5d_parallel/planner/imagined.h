// What a rank of any cluster holds and sends, to the byte and without the cluster: the composition
// of this chapter itself is built, for a rank among others that are only imagined (comm.h), and
// predicted as a run would be. Parameters are described, but have no storage. A rank of a million
// takes as long as one of two.
#pragma once

#include "../predict.h"
#include "comm/nodes.h"

namespace ultrascale {

// The rank at a place of the pipeline which has the first coordinate along all other axes: no rank
// at this place holds more.
inline int rank_of_place(const Axes& axes, int place) { return place * axes.stride("pp"); }

// `techniques` are complete. UserError if they cannot be combined.
inline Prediction predict_imagined(const Options& options, const StepShape& shape,
                                   const Techniques& techniques, int place) {
    const Axes& a = techniques.axes;
    const Communicator world =
        Communicator::imagined("world", a.dp * a.tp * a.cp * a.ep * a.pp, rank_of_place(a, place));
    Composition all(options, shape, techniques, world);
    return predict_balanced(all);
}

// How a group of a layout, of this name and so many ranks, is spread over nodes.
inline Spread spread_of(const std::string& group, int ranks, const Axes& axes, const Nodes& nodes) {
    const auto along = [&](const std::string& axis) {
        return nodes.spread(axes.size(axis), axes.stride(axis));
    };
    Spread all{1, 1, 1};
    bool of_axes = false;  // of one, or of several: "dp x cp"
    for (const std::string& axis : axes.order)
        if ((" " + group + " ").find(" " + axis + " ") != std::string::npos) {
            const Spread one = along(axis);
            all = {all.ranks * one.ranks, all.on_node * one.on_node, one.senders};
            of_axes = true;
        }
    if (of_axes) return all;
    if (group == "down" || group == "up" || group == "tied" || group == "copies") {
        Spread pair = along("pp");  // the slowest of them
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

// The places that differ: all of a short pipeline; of a long one the first three and the last two.
inline std::vector<int> places_shown(int pp) {
    std::vector<int> places;
    for (int place = 0; place < pp; ++place)
        if (pp <= 8 || place < 3 || place >= pp - 2) places.push_back(place);
    return places;
}

}  // namespace ultrascale
