// A token's rows: to the places of its choices, and back, where each token adds its rows in order.
#include "cpu/ops_common.h"
#include "ops_experts_checks.h"

namespace ultrascale::ops {

namespace {

template <class T>
void add(T* y, const T* rows, const T* residual, const int32_t* place, const PlaceSizes& s) {
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
                if (place[n * s.k + j] < 0) continue;
                const T* row = rows + place[n * s.k + j] * h + begin;
#pragma omp simd
                for (int64_t i = 0; i < size; ++i) sum[i] += float(row[i]);
            }
            for (int64_t i = 0; i < size; ++i) store(y[n * h + begin + i], sum[i]);
        }
}

void check_places(const int32_t* place, const PlaceSizes& s) {
    for (int64_t i = 0; i < s.N * s.k; ++i)
        check(place[i] >= -1 && place[i] < s.R,
              "sum_rows, scatter_rows: a place outside of the rows");
}

}  // namespace

void sum_rows(Tensor y, const Tensor& rows, const Tensor& place, const Tensor& residual) {
    const PlaceSizes s = sum_rows_sizes(y, rows, place, residual);
    check_places(place.as<int32_t>(), s);
    OpSpan span(
        "sum_rows", double(s.N * s.k * s.h),
        bytes_of(place) + double(s.k + 1) * bytes_of(y) + (residual ? bytes_of(residual) : 0));
    with_type(y.dtype(), [&]<class T>(T) {
        add(y.as<T>(), rows.as<T>(), residual ? residual.as<T>() : nullptr, place.as<int32_t>(), s);
    });
}

void scatter_rows(Tensor rows, const Tensor& x, const Tensor& place) {
    const PlaceSizes s = place_sizes(x, rows, place);
    const int32_t* const places = place.as<int32_t>();
    check_places(places, s);
    OpSpan span("scatter_rows", 0, bytes_of(place) + double(s.k + 1) * bytes_of(x));
    with_type(x.dtype(), [&]<class T>(T) {
        const T* const from = x.as<T>();
        T* const to = rows.as<T>();
#pragma omp parallel for if (s.N * s.k * s.h > parallel_threshold)
        for (int64_t n = 0; n < s.N; ++n)
            for (int64_t j = 0; j < s.k; ++j)
                if (const int64_t row = places[n * s.k + j]; row >= 0)
                    std::copy_n(from + n * s.h, s.h, to + row * s.h);
    });
}

}  // namespace ultrascale::ops
