// The way back from the experts: each token gathers its rows and adds them in order.
#include "core/ops_experts_checks.h"
#include "ops_common.h"

namespace ultrascale::ops {

namespace {

struct Arguments {
    const int32_t* place;
    const float* weights;  // or null
    SumSizes n;
    int64_t row(int64_t token, int64_t j) const { return place[token * n.k + j]; }
    float weight(int64_t token, int64_t j) const { return weights ? weights[token * n.k + j] : 1; }
};

template <class T>
void forward(T* y, const T* rows, const T* residual, const Arguments& a) {
    const int64_t h = a.n.h;
    constexpr int64_t part = 256;  // of a row: its sums stay in registers or L1
#pragma omp parallel for if (a.n.N * a.n.k * h > parallel_threshold)
    for (int64_t n = 0; n < a.n.N; ++n)
        for (int64_t begin = 0; begin < h; begin += part) {
            const int64_t size = std::min(part, h - begin);
            float sum[part];
            for (int64_t i = 0; i < size; ++i)
                sum[i] = residual ? float(residual[n * h + begin + i]) : 0;
            for (int64_t j = 0; j < a.n.k; ++j) {
                if (a.row(n, j) < 0) continue;
                const T* row = rows + a.row(n, j) * h + begin;
                const float w = a.weight(n, j);
#pragma omp simd
                for (int64_t i = 0; i < size; ++i) sum[i] += w * float(row[i]);
            }
            for (int64_t i = 0; i < size; ++i) store(y[n * h + begin + i], sum[i]);
        }
}

template <class T>
void backward(T* drows, float* dweights, const T* dy, const T* rows, const Arguments& a) {
    const int64_t h = a.n.h, k = a.n.k;
#pragma omp parallel for if (a.n.N * k * h > parallel_threshold)
    for (int64_t n = 0; n < a.n.N; ++n)
        for (int64_t j = 0; j < k; ++j) {
            const int64_t r = a.row(n, j);
            if (r < 0) {
                if (dweights) dweights[n * k + j] = 0;
                continue;
            }
            const T* d = dy + n * h;
            const float w = a.weight(n, j);
#pragma omp simd
            for (int64_t i = 0; i < h; ++i) store(drows[r * h + i], w * float(d[i]));
            if (!dweights) continue;
            float dot = 0;
#pragma omp simd reduction(+ : dot)
            for (int64_t i = 0; i < h; ++i) dot += float(d[i]) * float(rows[r * h + i]);
            dweights[n * k + j] = dot;
        }
}

void check_places(const Arguments& a) {
    for (int64_t i = 0; i < a.n.N * a.n.k; ++i)
        check(a.place[i] >= -1 && a.place[i] < a.n.R, "sum_rows: a place outside of the rows");
}

}  // namespace

void sum_rows(Tensor y, const Tensor& rows, const Tensor& place, const Tensor& weights,
              const Tensor& residual) {
    const SumSizes n = sum_rows_sizes(y, rows, place, weights);
    check(!residual || (residual.numel() == n.N * n.h && residual.dtype() == y.dtype()),
          "sum_rows: residual is (N, h)");
    const Arguments a = {place.as<int32_t>(), weights ? weights.as<float>() : nullptr, n};
    check_places(a);
    OpSpan span("sum_rows", 2.0 * double(n.N * n.k * n.h),
                bytes_of(y, place) * 1.0 + double(n.k) * bytes_of(y) +
                    (weights ? bytes_of(weights) : 0) + (residual ? bytes_of(residual) : 0));
    with_type(y.dtype(), [&]<class T>(T) {
        forward(y.as<T>(), rows.as<T>(), residual ? residual.as<T>() : nullptr, a);
    });
}

void sum_rows_backward(Tensor drows, Tensor dweights, const Tensor& dy, const Tensor& rows,
                       const Tensor& place, const Tensor& weights) {
    const SumSizes n = sum_rows_backward_sizes(drows, dweights, dy, rows, place, weights);
    const Arguments a = {place.as<int32_t>(), weights ? weights.as<float>() : nullptr, n};
    check_places(a);
    OpSpan span("sum_rows_backward", (weights ? 3.0 : 0.0) * double(n.N * n.k * n.h),
                bytes_of(dy, place) + (weights ? 2.0 : 1.0) * double(n.k) * bytes_of(dy));
    with_type(dy.dtype(), [&]<class T>(T) {
        backward(drows.as<T>(), weights ? dweights.as<float>() : nullptr, dy.as<T>(),
                 weights ? rows.as<T>() : nullptr, a);
    });
}

}  // namespace ultrascale::ops
