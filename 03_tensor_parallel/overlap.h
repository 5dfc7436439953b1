// Hiding the communication of tensor parallelism.
//
//   none    compute   [ dX = dY W ]               [ dW = dY^T X ]            forward:  [ Y = X W^T ]
//           network                [ sum dX    ]                                                     [ sum Y        ]
//
//   async   compute   [ dX = dY W ][ dW = dY^T X ]      the backward of a column linear: dW needs nothing of dX's sum
//           network                [ sum dX    ]
//
//   chunk   compute   [ Y 1st half ][ Y 2nd half ]      async, and where nothing else is left to do the GEMM itself is cut by rows
//           network                 [ sum 1st    ][ sum 2nd    ]   (tokens): a part is under way while the next one is computed
//
// A row linear's sum and a column linear's gather (sequence_parallel.h) stand on the critical path:
// the next operation needs all of it. So the last chunk's sum (the first one's gather) stays
// exposed, and smaller GEMMs are slower ones. Wang et al. 2023, "Overlap communication with
// dependent computation via decomposition"; Megatron-LM's asynchronous gradient all-reduce is
// `async`.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace ultrascale {

enum class Overlap { none, async, chunk };
inline constexpr const char* overlap_names[] = {"none", "async", "chunk"};

// Where a collective runs: beside compute, or in line with it.
inline Stream& stream_for(bool beside) {
    return beside ? communication_stream() : compute_stream();
}

// Rows of chunk c of `chunks`, which divides the rows; x is read as a matrix.
inline Tensor chunk_of(const Tensor& x, int64_t c, int64_t chunks) {
    const int64_t rows = x.rows() / chunks;
    return x.view({x.rows(), x.cols()}).slice(c * rows, (c + 1) * rows);
}

}  // namespace ultrascale
