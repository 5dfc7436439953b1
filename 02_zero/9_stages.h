// Makes the stage that --stage names.
#pragma once

#include "4_zero0.h"
#include "4_zero1.h"
#include "5_zero2.h"
#include "6_zero3.h"

namespace ultrascale::zero {

// `units`: of one model or of several, as for Zero.
inline std::unique_ptr<Zero> make_zero(ParameterList& parameters, std::vector<const Unit*> units,
                                       const Mesh& mesh, const Options& options,
                                       const ZeroOptions& zero) {
    switch (zero.stage) {
        case 0: return std::make_unique<Zero0>(parameters, units, mesh, options, zero);
        case 1: return std::make_unique<Zero1>(parameters, units, mesh, options, zero);
        case 2: return std::make_unique<Zero2>(parameters, units, mesh, options, zero);
        default: return std::make_unique<Zero3>(parameters, units, mesh, options, zero);
    }
}
inline std::unique_ptr<Zero> make_zero(Llama& model, const Mesh& mesh, const Options& options,
                                       const ZeroOptions& zero) {
    std::vector<const Unit*> units;
    for (const Unit& unit : model.units()) units.push_back(&unit);
    return make_zero(model.parameters(), std::move(units), mesh, options, zero);
}

}  // namespace ultrascale::zero
