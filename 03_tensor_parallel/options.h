// What the chapter's options choose.
#pragma once

#include "overlap.h"

namespace ultrascale {

struct TensorOptions {
    int tp = 0;                      // ranks that share a layer; 0: all
    bool sequence_parallel = false;  // sequence_parallel.h
    bool keep_gathered = false;      // keep a column linear's gathered input for its weight gradient, and do not gather it again
    Overlap overlap = Overlap::none;
    int64_t chunks = 2;                  // of Overlap::chunk
    bool partition_checkpoints = false;  // partition_checkpoints.h
    double dropout = 0;                  // on the residual stream: dropout.h
    bool same_seed = true;               // every rank draws an element's dropout alike
};

}  // namespace ultrascale
