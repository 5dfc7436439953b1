// Which ranks hold copies of a parameter, and who of them counts it: the parameter's description
// (model/parameter.h: split_over, replica_groups) on the ranks' grid (comm/mesh.h).
#pragma once

#include "comm/mesh.h"
#include "model/parameter.h"

namespace ultrascale {

// The ranks over which a parameter's gradient is summed, apart from its replica_groups: the data
// axes along which it is not split.
const Communicator& data_group(const Mesh& mesh, const Parameter& parameter);
// Whether this rank includes the parameter in sums over mesh.norm_group(). Of ranks that hold
// copies only the first one does.
bool counts(const Mesh& mesh, const Parameter& parameter);
// The same if the ranks of data_group() hold different shards instead of copies: then all of them
// do.
bool counts_shards(const Mesh& mesh, const Parameter& parameter);

}  // namespace ultrascale
