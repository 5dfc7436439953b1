// An awkward number of GPUs, like 13, 100 or 1,000, divides nothing well: not a batch of 256
// sequences, 64 heads or 80 layers. Then fewer GPUs may do as much, and some number near it is
// better. It is found by planning for one number after the other.
#pragma once

#include <bit>

#include "planner.h"

namespace ultrascale::five_d {

// Numbers of GPUs that are tried before the search gives up.
inline constexpr int64_t nearest_tries = 1000;

// Returns the nearest smaller number of GPUs for which a layout fits, or if there is none the
// nearest larger one; 0 if none of those that were tried fits.
inline int64_t nearest_that_fits(const PlanFor& what) {
    Planner planner(what);
    const StepShape& shape = what.shape;
    // The bytes that persist: no layout divides them among more than all GPUs.
    const double all = double(parameter_count(shape.config)) *
                       double(dtype_bytes(shape.model.dtype) + dtype_bytes(shape.grad_dtype) +
                              optimizer_bytes(shape.model.dtype));
    const auto fits = [&](int64_t gpus) {
        planner.set_gpus(gpus);
        return all / double(gpus) <= double(what.limit()) && planner.any_fits();
    };
    const int64_t most = std::min(what.gpus - 1, nearest_tries);
    for (int64_t fewer = 1; fewer <= most; ++fewer)
        if (fits(what.gpus - fewer)) return what.gpus - fewer;
    for (int64_t more = 1; more <= nearest_tries; ++more)
        if (fits(what.gpus + more)) return what.gpus + more;
    return 0;
}

// The largest number of fewer GPUs whose best layout, `best`, is at least as fast as the best one
// on all what.gpus, which reaches this `mfu`, 0 to 1, and takes `seconds` a step. None if all GPUs
// are worth it.
struct Fewer {
    int64_t gpus;
    Ranked best;
};
inline std::optional<Fewer> as_fast_with_fewer(const PlanFor& what, double mfu, double seconds) {
    // A power of two divides everything: it shows what the model reaches on about as many GPUs.
    const int64_t even = int64_t(std::bit_floor(uint64_t(what.gpus)));
    if (even == what.gpus) return {};
    Planner planner(what);
    planner.set_gpus(even);
    const Planned reference = planner.plan();
    constexpr double noise = 0.05;  // of the MFU, between similar numbers of GPUs
    if (reference.fit.empty()) return {};
    const double reached = planner.mfu(reference.fit.front());
    if (mfu >= (1 - noise) * reached) return {};
    const int64_t least =
        std::max(even, int64_t(double(what.gpus) * mfu / (reached * (1 + noise))));
    for (int64_t gpus = what.gpus - 1; gpus >= least; --gpus) {
        planner.set_gpus(gpus);
        const Planned some = planner.plan();
        if (!some.fit.empty() && some.fit.front().seconds <= seconds)
            return Fewer{gpus, some.fit.front()};
    }
    return {};
}

}  // namespace ultrascale::five_d
