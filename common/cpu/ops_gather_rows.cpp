// Rows in another order: a copy of each row, whatever its elements are.
#include <cstring>

#include "ops_common.h"

namespace ultrascale::ops {

void gather_rows(Tensor out, const Tensor& in, const Tensor& index) {
    const int64_t N = index.numel(), row = N == 0 ? 0 : out.numel() / N;  // elements
    check(out.dtype() == in.dtype(), "gather_rows: out and in are of one dtype");
    check(out.numel() == N * row, "gather_rows: out has a row for each index");
    check(row == 0 || in.numel() % row == 0, "gather_rows: in has rows of the same size as out");
    OpSpan span("gather_rows", 0, bytes_of(out, out, index));
    const int32_t* from = index.as<int32_t>();
    const int64_t rows = row == 0 ? 0 : in.numel() / row, bytes = row * dtype_bytes(in.dtype());
    for (int64_t n = 0; n < N && row > 0; ++n)
        check(from[n] >= 0 && from[n] < rows, "gather_rows: an index outside of in");
    char* const to = static_cast<char*>(out.data());
    const char* const source = static_cast<const char*>(in.data());
    // Rows are copied in parts, so that all threads have work even if there are only a few long
    // rows.
    constexpr int64_t part = 1 << 16;
    const int64_t parts = (bytes + part - 1) / part;
#pragma omp parallel for if (N * bytes > 4 * parallel_threshold)
    for (int64_t x = 0; x < N * parts; ++x) {
        const int64_t n = x / parts, begin = x % parts * part;
        std::memcpy(to + n * bytes + begin, source + from[n] * bytes + begin,
                    size_t(std::min(part, bytes - begin)));
    }
}

}  // namespace ultrascale::ops
