// What the chapter's options choose.
#pragma once

#include <cstdint>

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

// Into how many chunks a GEMM with so many rows is cut. With sequence parallelism every rank has an equal share of each chunk: who has
// which token depends on it, so it depends on nothing but the rows.
inline int64_t row_chunks(const TensorOptions& options, int64_t rows) {
    const int64_t parts = options.chunks * (options.sequence_parallel ? options.tp : 1);
    return options.overlap == Overlap::chunk && rows % parts == 0 ? options.chunks : 1;
}

}  // namespace ultrascale
