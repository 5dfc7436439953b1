// What the chapter's report has besides: which micro-batch would fit, whether copies stayed equal.
#pragma once

#include "core/ops.h"
#include "predict.h"
#include "report/report.h"

namespace ultrascale {

// How far the ranks' copies of the norms' weights are apart: the largest difference from rank 0's.
inline double largest_difference_of_copies(const ParameterList& parameters) {
    double largest = 0;
    for (const auto& p : parameters) {
        if (p->start != Start::ones) continue;
        const Tensor first = Tensor::empty(p->value.shape(), p->value.dtype(), Memory::workspace);
        ops::copy(first, p->value);
        Communicator::world().broadcast(first, 0);
        const std::vector<float> a = first.to_host_float(), b = p->value.to_host_float();
        for (size_t i = 0; i < a.size(); ++i)
            largest = std::max(largest, double(std::abs(a[i] - b[i])));
    }
    return largest_of_ranks(Communicator::world(), largest);
}

// False if the ranks' copies are apart which should not be.
inline bool print_copies(Report& report, const ParameterList& parameters, bool same_seed) {
    const double apart = largest_difference_of_copies(parameters);
    const bool ok = apart == 0 || !same_seed;
    if (report.full() || apart > 0)
        print(
            fmt::format("  copies of the norms' weights on the ranks: largest difference {:.3g}{}",
                        apart, ok ? "" : "   MISMATCH"));
    report.value("copies", "largest_difference", apart);
    return ok;
}

inline void print_largest_micro_batch(Report& report, int64_t largest) {
    report.value("fits", "largest_micro_batch", double(largest));
    if (report.full())
        print(fmt::format("  the largest micro-batch for {}, by formula: {}",
                          format_bytes(double(memory_limit())), largest));
}

}  // namespace ultrascale
