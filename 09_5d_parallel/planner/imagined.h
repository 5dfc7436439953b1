// What a rank of any cluster holds and sends, to the byte and without the cluster. This chapter's
// own composition is built, for a rank among others that are only imagined (comm.h), and predicts
// as in a run. Parameters have no storage. A rank of a million takes as long as a rank of two.
#pragma once

#include "../lab/options.h"
#include "../lab/predict.h"

namespace ultrascale::five_d {

// The rank at a place of the pipeline that has the first coordinate along all other axes: no rank
// at this place holds more.
inline int first_rank_of(const Axes& axes, int pp_rank) { return pp_rank * axes.stride("pp"); }

// `techniques` are complete. Throws UserError if they cannot be combined.
inline Prediction predict_imagined(const Options& options, const StepShape& shape,
                                   const Techniques& techniques, int pp_rank) {
    const Axes& a = techniques.axes;
    const Communicator world = Communicator::imagined("world", a.dp * a.tp * a.cp * a.ep * a.pp,
                                                      first_rank_of(a, pp_rank));
    Composition all(options, shape, techniques, world);
    check_experts(all);
    return predict_balanced(all);
}

}  // namespace ultrascale::five_d
