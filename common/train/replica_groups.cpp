#include "replica_groups.h"

#include <algorithm>

namespace ultrascale {

static bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
}

const Communicator& data_group(const Mesh& mesh, const Parameter& parameter) {
    std::vector<std::string> axes;
    for (const char* axis : {"dp", "cp", "ep"})
        if (!contains(parameter.split_over, axis)) axes.push_back(axis);
    return mesh.group(axes);
}

bool counts(const Mesh& mesh, const Parameter& parameter) {
    const bool copied =
        mesh.has("ep") && !contains(parameter.split_over, "ep") && mesh.group("ep").rank() != 0;
    return !copied && counts_shards(mesh, parameter);
}

bool counts_shards(const Mesh& mesh, const Parameter& parameter) {
    if (mesh.has("tp") && !contains(parameter.split_over, "tp") && mesh.group("tp").rank() != 0)
        return false;
    return std::ranges::all_of(parameter.replica_groups, [&](const std::string& name) {
        return mesh.group(name).rank() == 0;
    });
}

}  // namespace ultrascale
