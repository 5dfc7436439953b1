// Latent attention's columns and rotations: plain loops over rows.
#include <cstring>

#include "core/ops_latent_checks.h"
#include "ops_common.h"

namespace ultrascale::ops {

void copy_columns(Tensor to, int64_t to_first, const Tensor& from, int64_t from_first,
                  int64_t count) {
    const int64_t n = rows_to_one(to, from), rows = to.rows();
    const OpSpan span = copy_columns_span(to, to_first, from, from_first, count);
    const int64_t element = dtype_bytes(to.dtype());
    char* const target = static_cast<char*>(to.data()) + to_first * element;
    const char* const source = static_cast<const char*>(from.data()) + from_first * element;
    const int64_t to_row = to.cols() * element, from_row = from.cols() * element;
#pragma omp parallel for if (rows * count > parallel_threshold)
    for (int64_t r = 0; r < rows; ++r)
        std::memcpy(target + r * to_row, source + r / n * from_row, size_t(count * element));
}

void sum_columns(Tensor to, const Tensor& from, int64_t from_first) {
    const int64_t n = rows_to_one(from, to), rows = to.rows(), count = to.cols(),
                  from_cols = from.cols();
    const OpSpan span = sum_columns_span(to, from, from_first);
    with_type(to.dtype(), [&]<class T>(T) {
        T* const sums = to.as<T>();
        const T* const source = from.as<T>() + from_first;
#pragma omp parallel for if (rows * n * count > parallel_threshold)
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t i = 0; i < count; ++i) {
                float sum = 0;
                for (int64_t j = 0; j < n; ++j) sum += float(source[(r * n + j) * from_cols + i]);
                store(sums[r * count + i], sum);
            }
    });
}

void rotate_pairs(Tensor x, const Tensor& positions, const Tensor& frequencies, bool back) {
    const OpSpan span = rotate_pairs_span(x, positions, frequencies);
    const int64_t tokens = x.size(0) * x.size(1), H = x.size(2), D = x.size(3),
                  pairs = frequencies.numel();
    const int32_t* const position = positions.as<int32_t>();
    const float* const frequency = frequencies.as<float>();
    with_type(x.dtype(), [&]<class T>(T) {
        T* const values = x.as<T>();
#pragma omp parallel for if (tokens * H * pairs > parallel_threshold)
        for (int64_t n = 0; n < tokens; ++n)
            for (int64_t i = 0; i < pairs; ++i) {
                const float angle = float(position[n]) * frequency[i], c = std::cos(angle),
                            s = back ? -std::sin(angle) : std::sin(angle);
                for (int64_t head = 0; head < H; ++head) {
                    T* const pair = values + (n * H + head + 1) * D - 2 * (pairs - i);
                    const float a = float(pair[0]), b = float(pair[1]);
                    store(pair[0], a * c - b * s);
                    store(pair[1], b * c + a * s);
                }
            }
    });
}

}  // namespace ultrascale::ops
