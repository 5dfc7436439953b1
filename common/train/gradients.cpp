#include "gradients.h"

#include <algorithm>

#include "core/ops.h"
#include "core/trace.h"

namespace ultrascale {

static void all_reduce(const Parameter& parameter, const Communicator& group) {
    if (group.size() == 1) return;
    const TraceName name(TraceName::whole, parameter.name);
    group.all_reduce(parameter.grad);
}

void sum_gradients(const ParameterList& parameters, const Mesh& mesh) {
    parameters.check_complete();
    explain("gradients: each is summed over the ranks that saw other tokens or hold a copy");
    phase("sum gradients", [&] {
        for (const auto& p : parameters) all_reduce(*p, data_group(mesh, *p));
        sum_over_replica_groups(parameters, mesh);
    });
}

void sum_over_replica_groups(const ParameterList& parameters, const Mesh& mesh) {
    std::vector<std::string> groups;
    for (const auto& p : parameters)
        for (const std::string& name : p->replica_groups)
            if (std::ranges::find(groups, name) == groups.end()) groups.push_back(name);
    for (const std::string& group : groups)
        for (const auto& p : parameters)
            if (std::ranges::find(p->replica_groups, group) != p->replica_groups.end())
                all_reduce(*p, mesh.group(group));
}

Tensor sum_of_squares(const std::vector<Tensor>& tensors) {
    Tensor sum = Tensor::zeros({1}, DType::fp64, Memory::workspace);
    ops::accumulate_sum_squares(sum, tensors);
    return sum;
}

Tensor squared_gradient_norm(const ParameterList& parameters, const Mesh* mesh) {
    std::vector<Tensor> grads;
    for (const auto& p : parameters)
        if (!mesh || counts(*mesh, *p)) grads.push_back(p->grad);
    return sum_of_squares(grads);
}

}  // namespace ultrascale
