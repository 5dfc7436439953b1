#include "whole_values.h"

#include <cmath>
#include <sstream>

namespace ultrascale {

double norm(const PlainTraining::Values& values) {
    double squares = 0;
    for (const auto& [name, tensor] : values)
        for (const float x : tensor) squares += square(x);
    return std::sqrt(squares);
}

double distance(const std::vector<TensorPart>& parts, const PlainTraining::Values& whole) {
    struct Sum {  // of one tensor, over this rank's elements
        double squares = 0, elements = 0;
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
                const double w = want[size_t((row + k / cols) * whole_cols + col + k % cols)];
                sum.squares += square(got[size_t(first + k)] - w);
            }
            sum.elements += double(count);
        });
    }
    for (const std::string& of_rank : Communicator::world().gather_strings(bytes_of(sums))) {
        sums = from_bytes<Sum>(of_rank);
        for (size_t t = 0; t < all.size(); ++t) {
            all[t].squares += sums[t].squares;
            all[t].elements += sums[t].elements;
        }
    }
    double squares = 0;
    size_t t = 0;
    for (const auto& [name, tensor] : whole) {
        squares += all[t].squares * double(tensor.size()) / all[t].elements;
        ++t;
    }
    return std::sqrt(squares);
}

void tell(PlainTraining::Values& values) {
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
