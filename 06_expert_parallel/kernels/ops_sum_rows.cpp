// Writes a token's row to the rows of its choices; and back, where each token adds its rows in
// order.
#include "cpu/ops_common.h"
#include "ops_experts_checks.h"

namespace ultrascale::ops {

namespace {

template <class T>
void add(T* y, const T* rows, const T* residual, const int32_t* row_map, const RowMapSizes& s) {
    const int64_t h = s.h;
    constexpr int64_t part = 256;  // of a row: its sums stay in registers or L1
#pragma omp parallel for if (s.N * s.k * h > parallel_threshold)
    for (int64_t n = 0; n < s.N; ++n)
        for (int64_t begin = 0; begin < h; begin += part) {
            const int64_t size = std::min(part, h - begin);
            float sum[part];
            for (int64_t i = 0; i < size; ++i)
                sum[i] = residual ? float(residual[n * h + begin + i]) : 0;
            for (int64_t j = 0; j < s.k; ++j) {
                if (row_map[n * s.k + j] < 0) continue;
                const T* row = rows + row_map[n * s.k + j] * h + begin;
#pragma omp simd
                for (int64_t i = 0; i < size; ++i) sum[i] += float(row[i]);
            }
            for (int64_t i = 0; i < size; ++i) store(y[n * h + begin + i], sum[i]);
        }
}

void check_row_map(const int32_t* row_map, const RowMapSizes& s) {
    for (int64_t i = 0; i < s.N * s.k; ++i)
        check(row_map[i] >= -1 && row_map[i] < s.R,
              "sum_rows, scatter_rows: a row outside of the rows");
}

}  // namespace

void sum_rows(Tensor y, const Tensor& rows, const Tensor& row_map, const Tensor& residual) {
    const RowMapSizes s = sum_rows_sizes(y, rows, row_map, residual);
    check_row_map(row_map.as<int32_t>(), s);
    OpSpan span(
        "sum_rows", double(s.N * s.k * s.h),
        bytes_of(row_map) + double(s.k + 1) * bytes_of(y) + (residual ? bytes_of(residual) : 0));
    with_type(y.dtype(), [&]<class T>(T) {
        add(y.as<T>(), rows.as<T>(), residual ? residual.as<T>() : nullptr, row_map.as<int32_t>(),
            s);
    });
}

void scatter_rows(Tensor rows, const Tensor& x, const Tensor& row_map) {
    const RowMapSizes s = row_map_sizes(x, rows, row_map);
    const int32_t* const row_of = row_map.as<int32_t>();
    check_row_map(row_of, s);
    OpSpan span("scatter_rows", 0, bytes_of(row_map) + double(s.k + 1) * bytes_of(x));
    with_type(x.dtype(), [&]<class T>(T) {
        const T* const from = x.as<T>();
        T* const to = rows.as<T>();
#pragma omp parallel for if (s.N * s.k * s.h > parallel_threshold)
        for (int64_t n = 0; n < s.N; ++n)
            for (int64_t j = 0; j < s.k; ++j)
                if (const int64_t row = row_of[n * s.k + j]; row >= 0)
                    std::copy_n(from + n * s.h, s.h, to + row * s.h);
    });
}

}  // namespace ultrascale::ops
