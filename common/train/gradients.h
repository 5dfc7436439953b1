// What becomes of the gradients between the backward and the update, the plain way: summed where
// several ranks contributed to them, and measured. 01_data_parallel does the first under the
// backward. Both read who holds what from the parameters' descriptions (parameter.h, mesh.h).
#pragma once

#include "comm/mesh.h"

namespace ultrascale {

// Every gradient becomes the sum of all contributions to it: over the data axes, one all-reduce a
// parameter; then over the groups that some parameters name besides. All ranks of the mesh call it.
// The programmer's error: not every contribution was made.
void sum_gradients(const ParameterList& parameters, const Mesh& mesh);
// The second half: what is summed besides. It comes last, also where the first half was done under
// the backward, so that ranks which hold different parameters meet in one order.
void sum_besides(const ParameterList& parameters, const Mesh& mesh);

// The sum of squares of the whole model's gradient, each element counted once: (1) fp64 on the
// device. With a mesh of the parts that its ranks hold; they all call it.
Tensor squared_gradient_norm(const ParameterList& parameters);
Tensor squared_gradient_norm(const ParameterList& parameters, const Mesh& mesh);

}  // namespace ultrascale
