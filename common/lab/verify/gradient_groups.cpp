#include "gradient_groups.h"

#include <cctype>
#include <cmath>
#include <sstream>

namespace ultrascale {

// "model.layers.3.block_sparse_moe.experts.5.w1.weight" -> "block_sparse_moe.experts.w1"
static std::string role_of(const std::string& name) {
    std::string role;
    std::istringstream parts(name);
    for (std::string part; std::getline(parts, part, '.');)
        if (part != "model" && part != "layers" && part != "weight" && !std::isdigit(part[0]))
            role += (role.empty() ? "" : ".") + part;
    return role;
}

GradientGroups::GradientGroups(const Reference::Values& plain,
                               const std::vector<Comparison>& tensors) {
    size_t t = 0;
    for (const auto& [name, tensor] : plain) {
        Comparison& group = groups_[role_of(name)];
        group.apart += tensors[t].apart, group.product += tensors[t].product;
        group.size += tensors[t++].size;
    }
}

void GradientGroups::print(Report& report) const {
    ultrascale::print(
        "  gradient of step 1 by parameters, as a multiple of the plain one, and error");
    for (const auto& [role, sums] : groups_) {
        const double factor = sums.product / sums.size, error = std::sqrt(sums.apart / sums.size);
        ultrascale::print(fmt::format("    {:<36} x {:<10.6f} {:>9.2e}", role, factor, error));
        report.row({{"table", "gradient"}, {"role", role}, {"factor", factor}, {"error", error}});
    }
}

}  // namespace ultrascale
