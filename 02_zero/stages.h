// Makes the stage that --stage names.
#pragma once

#include "zero0.h"
#include "zero1.h"
#include "zero2.h"
#include "zero3.h"

namespace ultrascale {

inline std::unique_ptr<Zero> make_zero(Llama& model, const Mesh& mesh, const Options& options,
                                       const ZeroOptions& zero) {
    ParameterList& parameters = model.parameters();
    std::vector<const Unit*> units;
    for (const Unit& unit : model.units()) units.push_back(&unit);
    switch (zero.stage) {
        case 0: return std::make_unique<Zero0>(parameters, units, mesh, options, zero);
        case 1: return std::make_unique<Zero1>(parameters, units, mesh, options, zero);
        case 2: return std::make_unique<Zero2>(parameters, units, mesh, options, zero);
        default: return std::make_unique<Zero3>(parameters, units, mesh, options, zero);
    }
}

}  // namespace ultrascale
