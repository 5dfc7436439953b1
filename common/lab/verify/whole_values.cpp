#include "whole_values.h"

#include <cmath>
#include <sstream>

namespace ultrascale {

double norm(const Reference::Values& values) {
    double squares = 0;
    for (const auto& [name, tensor] : values)
        for (const float x : tensor) squares += square(x);
    return std::sqrt(squares);
}

std::vector<Comparison> compare(const std::vector<TensorPart>& parts,
                                const Reference::Values& whole) {
    struct Sum {  // for one tensor, over this rank's elements
        Comparison of;
        double elements = 0;
    };
    std::vector<Sum> sums(whole.size()), all(whole.size());
    for (const TensorPart& part : parts) {
        const auto tensor = whole.find(part.name);
        const std::vector<float>&want = tensor->second, got = part.tensor.to_host_float();
        Sum& sum = sums[size_t(std::distance(whole.begin(), tensor))];
        part.for_each_block([&](const std::vector<Range>& block, int64_t first, int64_t count) {
            const int64_t whole_cols = part.shape.back(), cols = block.back().size();
            const int64_t row = block.size() == 2 ? block[0].begin : 0, col = block.back().begin;
            for (int64_t k = 0; k < count; ++k) {
                const double w = want[size_t((row + k / cols) * whole_cols + col + k % cols)],
                             g = got[size_t(first + k)];
                sum.of.apart += square(g - w), sum.of.product += g * w, sum.of.size += square(w);
            }
            sum.elements += double(count);
        });
    }
    for (const std::string& rank_sums : Communicator::world().gather_strings(bytes_of(sums))) {
        sums = from_bytes<Sum>(rank_sums);
        for (size_t t = 0; t < all.size(); ++t) {
            all[t].of.apart += sums[t].of.apart, all[t].of.product += sums[t].of.product;
            all[t].of.size += sums[t].of.size, all[t].elements += sums[t].elements;
        }
    }
    std::vector<Comparison> tensors;
    size_t t = 0;
    for (const auto& [name, tensor] : whole) {
        const auto& [sum, elements] = all[t++];
        const double once = double(tensor.size()) / elements;
        tensors.push_back({sum.apart * once, sum.product * once, sum.size * once});
    }
    return tensors;
}

double distance(const std::vector<Comparison>& tensors) {
    double squares = 0;
    for (const Comparison& tensor : tensors) squares += tensor.apart;
    return std::sqrt(squares);
}

void tell(Reference::Values& values) {
    const Communicator& world = Communicator::world();
    std::string names;
    for (const auto& [name, tensor] : values) names += name + "\n";
    std::istringstream lines(world.broadcast_string(names, 0));
    for (std::string name; std::getline(lines, name);) {
        std::vector<float>& tensor = values[name];
        tensor = from_bytes<float>(world.broadcast_string(bytes_of(tensor), 0));
    }
}

}  // namespace ultrascale
