// The ranks as a grid with named axes, e.g. 8 ranks as dp 4 x tp 2:
//
//            tp 0   tp 1
//     dp 0   rank 0 rank 1      a group of an axis: the ranks that differ along it and nowhere else
//     dp 1   rank 2 rank 3        tp of rank 4: {4, 5}
//     dp 2   rank 4 rank 5        dp of rank 4: {0, 2, 4, 6}
//     dp 3   rank 6 rank 7
//
// Axes are listed from the outermost to the innermost, whose groups are neighbours in rank: the ranks of one machine, with the fastest
// links. So tensor parallelism, which communicates most, comes last.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "comm.h"
#include "parameter.h"
#include "trace.h"

namespace ultrascale {

class Mesh {
public:
    struct Axis {
        std::string name;
        int size;
    };
    // All ranks of `world` call it. The sizes' product must be the number of ranks.
    Mesh(const Communicator& world, const std::vector<Axis>& axes) {
        int stride = world.size();  // ranks between neighbours along the axis
        for (const Axis& axis : axes) {
            check(axis.size > 0 && stride % axis.size == 0, "mesh: the axes' sizes do not make the number of ranks");
            stride /= axis.size;
            const int coordinate = world.rank() / stride % axis.size;
            groups_.emplace(axis.name, world.split(world.rank() - coordinate * stride, coordinate, axis.name));
        }
        check(stride == 1, "mesh: the axes' sizes do not make the number of ranks");
    }

    const Communicator& group(const std::string& axis) const { return groups_.at(axis); }  // its rank() is the coordinate

private:
    std::map<std::string, Communicator> groups_;
};

// Whether the parameter's gradient is summed over this axis.
inline bool is_summed_over(const Parameter& parameter, const std::string& axis) {
    return std::ranges::find(parameter.summed_over, axis) != parameter.summed_over.end();
}

// The plain way to sum gradients: after the backward, one all-reduce for each parameter that names the group among its axes.
inline void all_reduce_gradients(const ParameterList& parameters, const Communicator& group) {
    if (group.size() == 1) return;
    for (const auto& parameter : parameters) {
        const TraceName name(TraceName::whole, parameter->name);
        if (is_summed_over(*parameter, group.name())) group.all_reduce(parameter->grad);
    }
}

}  // namespace ultrascale
