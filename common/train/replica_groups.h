// Which ranks hold copies of a parameter, and which of them counts it. Both follow from the
// parameter's description (model/parameter.h: split_over, replica_groups) and from the ranks' grid
// (comm/mesh.h).
#pragma once

#include "comm/mesh.h"
#include "model/parameter.h"

namespace ultrascale {

// The ranks over which a parameter's gradient is summed, apart from its replica_groups: the data
// axes along which it is not split.
const Communicator& data_group(const Mesh& mesh, const Parameter& parameter);
// Whether this rank includes the parameter in sums over mesh.norm_group(). If several ranks hold
// copies, only the first one does.
bool counts(const Mesh& mesh, const Parameter& parameter);
// Answers the same for ZeRO, where the ranks of data_group() hold different shards instead of
// copies, and each of them includes its shard.
bool counts_shards(const Mesh& mesh, const Parameter& parameter);

}  // namespace ultrascale
