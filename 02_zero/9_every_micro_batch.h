// How stages 0 and 1 add up several micro-batches: each backward adds to the gradients, and they
// are communicated once, in the last micro-batch. With --no-sync off they are communicated after
// each micro-batch, as in stages 2 and 3, and the results are added up in separate sums.
//
//     --no-sync on     backward 0    backward 1    ...   backward A-1 | communication
//     --no-sync off    backward 0 | communication | sum =   backward 1 | communication | sum +=
#pragma once

#include <string_view>
#include <vector>

#include "core/ops.h"
#include "core/trace.h"
#include "model/parameter.h"

namespace ultrascale::zero {

class MicroBatchSums {
public:
    MicroBatchSums(ParameterList& parameters, bool every_micro_batch)
        : parameters_(parameters), every_(every_micro_batch) {}

    // Registers gradients whose sum over micro-batches is wanted, and returns where it will be: in
    // `reduced` itself, or with --no-sync off in a second tensor.
    Tensor sum_of(const Tensor& reduced, std::string_view unit = "") {
        if (!every_) return reduced;
        sums_.push_back(
            {reduced, Tensor::zeros(reduced.shape(), reduced.dtype(), Memory::gradient), unit});
        return sums_.back().sum;
    }
    void begin_step(int64_t micro_batches) {
        parameters_.begin_gradients(every_ ? 1 : micro_batches);
    }
    // Checks that gradients are complete. Called before waiting for their communication.
    void check_complete(bool last) const {
        if (last || every_) parameters_.check_complete();
    }
    // Called when a micro-batch's communication has finished: adds its result to the sums.
    void add(bool first, bool last) {
        if (!every_) return;
        for (const auto& [reduced, sum, unit] : sums_) {
            const TraceName name(TraceName::whole, unit);
            first ? ops::copy(sum, reduced) : ops::add(sum, reduced);
        }
        if (!last) parameters_.begin_gradients();
    }
    // Copies the sums into the gradients, where stage 0's AdamW and the verification look for them.
    void put_in_place() const {
        for (const auto& [reduced, sum, unit] : sums_) ops::copy(reduced, sum);
    }

private:
    struct Sum {
        Tensor reduced, sum;
        std::string_view unit;  // its name in the trace
    };
    ParameterList& parameters_;
    bool every_;
    std::vector<Sum> sums_;
};

}  // namespace ultrascale::zero
