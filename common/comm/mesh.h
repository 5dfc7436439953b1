// The ranks as a grid with named axes, e.g. 8 ranks as dp 4 x tp 2:
//
//            tp 0   tp 1
//     dp 0   rank 0 rank 1      a group of an axis: the ranks that differ along it and nowhere else
//     dp 1   rank 2 rank 3        tp of rank 4: {4, 5}
//     dp 2   rank 4 rank 5        dp of rank 4: {0, 2, 4, 6}
//     dp 3   rank 6 rank 7
//
// Axes are listed from the outermost to the innermost. The groups of the innermost axis are
// consecutive ranks, on one machine with the fastest links. So tensor parallelism, which
// communicates most, comes last.
//
// What the axes mean for a parameter (model/parameter.h; train/replica_groups.h):
//
//     dp, cp, ep   data axes: each rank sees different tokens. A gradient is summed over those
//                  along which the parameter is not split (an expert is split over ep, all
//                  else is copied)
//     tp           the ranks see the same tokens and hold parts of a layer, or copies of a norm
//     pp           each rank holds layers of its own
//     replica      the ranks see different tokens and hold the same shards of ZeRO (02)
#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm.h"

namespace ultrascale {

class Mesh {
public:
    struct Axis {
        std::string name;
        int size;
    };
    // All ranks of `world` call it. The product of the sizes must be the number of ranks.
    Mesh(const Communicator& world, const std::vector<Axis>& axes);

    bool has(const std::string& group) const { return groups_.contains(group); }
    const Communicator& group(const std::string& axis) const;  // rank() is the coordinate
    // The ranks that differ along these axes and along no other, in rank order: group({"dp",
    // "cp"}). Axes that the mesh does not have, or of size 1, are ignored. All ranks must ask for a
    // new group together.
    const Communicator& group(std::initializer_list<const char*> axes) const {
        return group(std::vector<std::string>(axes.begin(), axes.end()));
    }
    const Communicator& group(const std::vector<std::string>& axes) const;
    const Communicator& world() const { return world_; }

    // A group of ranks that hold copies although they are along an axis over which the parameter is
    // split: copies of a key-value head ("kv"), or a tied weight on the first and the last stage
    // ("tied").
    void add_copies(Communicator group) {
        groups_.insert_or_assign(group.name(), std::move(group));
    }

    // The ranks over which the model is distributed: those along pp, ep and tp. A sum over all
    // elements of the model (a norm) is a sum over this group.
    const Communicator& norm_group() const { return group({"pp", "ep", "tp"}); }
    // The ranks that see different tokens; and, if these hold shards of the model instead of copies
    // (ZeRO), those over which it is then distributed.
    const Communicator& data_group() const { return group({"dp", "cp", "ep"}); }
    const Communicator& norm_group_of_shards() const {
        return group({"replica", "dp", "cp", "ep", "pp", "tp"});
    }

private:
    const Communicator& world_;
    std::vector<Axis> axes_;
    mutable std::map<std::string, Communicator> groups_;
};

}  // namespace ultrascale
