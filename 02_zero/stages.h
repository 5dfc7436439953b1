// The stage that --stage names.
#pragma once

#include "zero0.h"
#include "zero3.h"

namespace ultrascale {

inline std::unique_ptr<Zero> make_zero(Llama& model, const Communicator& ranks, const Options& options, const ZeroOptions& zero) {
    switch (zero.stage) {
        case 0: return std::make_unique<Zero0>(model, ranks, options, zero);
        case 1: return std::make_unique<Zero1>(model, ranks, options, zero);
        case 2: return std::make_unique<Zero2>(model, ranks, options, zero);
        default: return std::make_unique<Zero3>(model, ranks, options, zero);
    }
}

}  // namespace ultrascale
