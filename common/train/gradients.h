// The plain way from the backward to the update: gradients are summed over the ranks that
// contributed to them, and squared for their norm (updater.h). 01_data_parallel overlaps the sums
// with the backward. The parameters' descriptions say which ranks hold what (parameter.h, mesh.h).
#pragma once

#include "replica_groups.h"

namespace ultrascale {

// Sums every gradient over all ranks that contributed: first over the data axes, with one
// all-reduce per parameter, then over the groups in replica_groups. All ranks of the mesh call
// it. Fails check() if a contribution is missing.
void sum_gradients(const ParameterList& parameters, const Mesh& mesh);
// The second half of sum_gradients: the sums over replica_groups. It comes last even if the first
// half was overlapped with the backward, so that ranks with different parameters make their calls
// in the same order.
void sum_over_replica_groups(const ParameterList& parameters, const Mesh& mesh);

// Both return a sum of squares, (1) fp64 on the device. sum_of_squares() takes tensors of one
// dtype; squared_gradient_norm() takes the gradients that this rank holds. With a mesh, it leaves
// out those that another rank counts (replica_groups.h).
Tensor sum_of_squares(const std::vector<Tensor>& tensors);
Tensor squared_gradient_norm(const ParameterList& parameters, const Mesh* mesh = nullptr);

}  // namespace ultrascale
