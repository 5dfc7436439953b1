// What the chapter's options choose.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace ultrascale::tensor_parallel {

// How communication is hidden: not at all; by 5_async_backward.h; by that and 6_chunked_linear.h;
// by that and 6_halves.h.
enum class Overlap { none, async, chunk, halves };
inline constexpr const char* overlap_names[] = {"none", "async", "chunk", "halves"};

struct TensorOptions {
    int tp = 0;                      // ranks that share a layer; 0: all
    bool sequence_parallel = false;  // 4_sequence_parallel.h
    // keep a column linear's gathered input for its weight gradient instead of gathering it again
    bool keep_gathered = false;
    bool plain = false;  // 1_plain.h: none of the others, but for recomputation and dropout
    Overlap overlap = Overlap::none;
    int64_t chunks = 2;                  // of Overlap::chunk
    bool partition_checkpoints = false;  // 7_partition_checkpoints.h
    bool same_seed = true;               // every rank draws the same dropout mask for an element
};

// Returns as how many smaller micro-batches a micro-batch runs.
inline int64_t parts_of_micro_batch(const TensorOptions& options) {
    return options.overlap == Overlap::halves ? 2 : 1;
}

// Returns into how many chunks a GEMM with so many rows is cut. With sequence parallelism every
// rank has an equal share of each chunk. So the number of chunks decides which rank has which
// token, and must depend on the rows alone.
inline int64_t row_chunks(const TensorOptions& options, int64_t rows) {
    const int64_t parts = options.chunks * (options.sequence_parallel ? options.tp : 1);
    return options.overlap == Overlap::chunk && rows % parts == 0 ? options.chunks : 1;
}

// The rows of chunk c of `chunks`, which must divide the rows; x is read as a matrix.
inline Tensor chunk_of(const Tensor& x, int64_t c, int64_t chunks) {
    const int64_t rows = x.rows() / chunks;
    return x.view({x.rows(), x.cols()}).slice(c * rows, (c + 1) * rows);
}

}  // namespace ultrascale::tensor_parallel
