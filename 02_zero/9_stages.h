// Makes the stage that --stage names, with what is added to it.
#pragma once

#include <memory>

#include "1_plain.h"
#include "4_zero0.h"
#include "4_zero1.h"
#include "5_zero2.h"
#include "6_zero3.h"
#include "7_hybrid.h"
#include "7_muon.h"
#include "7_offload.h"
#include "7_secondary.h"
#include "8_narrow.h"
#include "9_every_micro_batch.h"

namespace ultrascale::zero {

template <class Stage, class... Arguments>
std::unique_ptr<Updater> make_stage(const ZeroOptions& zero, Arguments&... arguments) {
    if (zero.offload) return std::make_unique<Offloaded<Stage>>(arguments..., zero);
    return std::make_unique<Stage>(arguments..., zero);
}

// `u`: all units, of one model or of several, as for Zero.
inline std::unique_ptr<Updater> make_zero(ParameterList& p, const std::vector<const Unit*>& u,
                                          const Mesh& m, const Options& o,
                                          const ZeroOptions& zero) {
    const bool each = zero.every_micro_batch, narrow_sums = zero.sums != Sent::plain;
    if (zero.plain && zero.muon) return std::make_unique<MuonZero1>(p, m.data_group(), o);
    if (zero.plain) return std::make_unique<PlainZero1>(p, m.data_group(), o);
    switch (zero.stage) {
        case 0:
            if (each) return std::make_unique<EveryMicroBatch<Zero0>>(p, u, m, o, zero);
            return std::make_unique<Zero0>(p, u, m, o, zero);
        case 1:
            if (each) return make_stage<EveryMicroBatch<Zero1>>(zero, p, u, m, o);
            return make_stage<Zero1>(zero, p, u, m, o);
        case 2:
            if (narrow_sums) return make_stage<NarrowSums<Zero2>>(zero, p, u, m, o);
            return make_stage<Zero2>(zero, p, u, m, o);
        default:
            if (zero.secondary_shard > 0) return make_stage<SecondaryShards>(zero, p, u, m, o);
            if (zero.gathers != Sent::plain) return make_stage<NarrowGathers>(zero, p, u, m, o);
            if (narrow_sums) return make_stage<NarrowSums<Zero3>>(zero, p, u, m, o);
            return make_stage<Zero3>(zero, p, u, m, o);
    }
}
// Of one model.
inline std::vector<const Unit*> units_of(const Llama& model) {
    std::vector<const Unit*> units;
    for (const Unit& unit : model.units()) units.push_back(&unit);
    return units;
}
inline std::unique_ptr<Updater> make_zero(Llama& model, const Mesh& mesh, const Options& options,
                                          const ZeroOptions& zero) {
    return make_zero(model.parameters(), units_of(model), mesh, options, zero);
}

}  // namespace ultrascale::zero
