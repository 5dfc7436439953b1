// The report's sections that only this chapter has: which micro-batch would fit, and whether copies
// stayed equal; and --estimate's report.
#pragma once

#include "core/ops.h"
#include "lab/report/report.h"
#include "predict.h"
#include "../8_tensor_parallel.h"
#include "train/run.h"

namespace ultrascale::tensor_parallel {

// How much the ranks' copies of the norms' weights differ: the largest difference from rank 0's.
inline double largest_difference_of_copies(const ParameterList& parameters) {
    double largest = 0;
    for (const auto& p : parameters) {
        if (p->init != Init::ones) continue;
        const Tensor first = Tensor::empty(p->value.shape(), p->value.dtype(), Memory::workspace);
        ops::copy(first, p->value);
        Communicator::world().broadcast(first, 0);
        const std::vector<float> a = first.to_host_float(), b = p->value.to_host_float();
        for (size_t i = 0; i < a.size(); ++i)
            largest = std::max(largest, double(std::abs(a[i] - b[i])));
    }
    return largest_of_ranks(Communicator::world(), largest);
}

// Returns false if copies differ that must be equal.
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

// --estimate: the rank's parameters are only described; nothing is allocated.
inline void print_estimate(const Options& options, const TensorOptions& tensor,
                           const StepShape& shape) {
    const Communicator& world = Communicator::world();
    Mesh mesh(world, {{"dp", world.size() / tensor.tp}, {"tp", tensor.tp}});
    const Communicator &dp = mesh.group("dp"), &tp = mesh.group("tp");
    const TensorParallel parallel(shape.config, tensor, mesh);
    Llama model(shape.config, shape.model, parallel.factories(shape.model),
                Stage::whole(shape.config));
    const ParameterList& parameters = model.parameters();
    Report report("03_tensor_parallel", options, shape, 0);
    report.configuration(sequences_of_step(options, dp.size()), "", dp.size());
    const int64_t rows = shape.micro_batch * shape.seq;
    report.technique("tensor", describe(tensor, dp.size(), rows, options.dropout),
                     {{"tp", tensor.tp}, {"dp", dp.size()}});
    report.estimate(predict(shape, tensor, parameters, options.grad_accum, dp.size(), tp.rank()), 1,
                    what_needs_less(shape, tensor, parameters, tp.rank(), memory_limit()));
    report.finish();
}

}  // namespace ultrascale::tensor_parallel
