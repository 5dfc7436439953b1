#include "mesh.h"

#include <algorithm>

#include "core/error.h"

namespace ultrascale {

static bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
}

Mesh::Mesh(const Communicator& world, const std::vector<Axis>& axes) : world_(world), axes_(axes) {
    int stride = world.size();  // the difference in rank between neighbours along the axis
    for (const Axis& axis : axes) {
        check(axis.size > 0 && stride % axis.size == 0,
              "mesh: the axes' sizes do not make the number of ranks");
        stride /= axis.size;
        const int coordinate = world.rank() / stride % axis.size,
                  color = world.rank() - coordinate * stride;
        // A single axis is the world itself and needs no communicator of its own.
        groups_.emplace(axis.name, axes.size() == 1 ? world
                                                    : world.split(color, coordinate, axis.name,
                                                                  axis.size, coordinate));
    }
    check(stride == 1, "mesh: the axes' sizes do not make the number of ranks");
    // Create all groups over which parameters are summed now; ranks that hold different parameters
    // would ask for them in different orders.
    const std::vector<std::vector<std::string>> needed = {{"dp", "cp", "ep"},
                                                          {std::string("dp"), "cp"},
                                                          {std::string("dp"), "ep"},
                                                          {"pp", "ep", "tp"}};
    for (const std::vector<std::string>& group : needed)
        if (std::ranges::any_of(axes, [&](const Axis& axis) { return contains(group, axis.name); }))
            this->group(group);
    if (axes.size() > 1) group(std::vector<std::string>{});  // for parameters that are not summed
}

const Communicator& Mesh::group(const std::string& axis) const {
    const auto found = groups_.find(axis);
    check(found != groups_.end(), "the mesh has no group of this name");
    return found->second;
}

const Communicator& Mesh::group(const std::vector<std::string>& axes) const {
    std::string name, any;
    int color = 0, stride = world_.size(), ranks = 1, index = 0;
    for (const Axis& axis : axes_) {
        stride /= axis.size;
        const int coordinate = world_.rank() / stride % axis.size;
        if (!contains(axes, axis.name)) {
            color += coordinate * stride;
            continue;
        }
        ranks *= axis.size, index = index * axis.size + coordinate;
        any = axis.name;
        if (axis.size > 1) name += (name.empty() ? "" : " x ") + axis.name;
    }
    if (name.empty()) name = any.empty() ? "one rank" : any;  // these groups are all equal
    if (!groups_.contains(name))
        groups_.emplace(name, world_.split(color, world_.rank(), name, ranks, index));
    return groups_.at(name);
}

}  // namespace ultrascale
