// Sums over rows that do not depend on the number of threads. Private to common/cpu.
#pragma once

#include "ops_common.h"

namespace ultrascale::ops {

// Blocks of rows have their own sums, which are added in order: so none depends on the threads.
inline int64_t rows_per_block(int64_t N) { return std::max<int64_t>(32, (N + 63) / 64); }

// to (h) = the sum of `blocks` rows of partial, which are `stride` elements apart (+ to).
inline void add_blocks(Tensor to, float* partial, int64_t blocks, int64_t stride, bool adds) {
    const int64_t h = to.numel();
    for (int64_t b = 1; b < blocks; ++b)
#pragma omp simd
        for (int64_t i = 0; i < h; ++i) partial[i] += partial[b * stride + i];
    with_type(to.dtype(), [&]<class W>(W) {
        W* out = to.as<W>();
        for (int64_t i = 0; i < h; ++i)
            store(out[i], (adds ? float(out[i]) : 0) + (blocks > 0 ? partial[i] : 0));
    });
}

}  // namespace ultrascale::ops
