// Writes a token's row to the rows of its choices; and back, where each token adds its rows in
// order.
//
// Both are memory-bound. For each element of a token, sum_rows reads k (with a residual k + 1) and
// writes one, scatter_rows reads one and writes k.
#include "cuda/ops_common.cuh"
#include "ops_experts_checks.h"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;

// Each thread computes one pack of y.
template <int n, class T>
__global__ void __launch_bounds__(threads)
    sum_kernel(T* y, const T* rows, const int32_t* row_map, const T* residual, int64_t packs,
               int row_packs, int k) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (i >= packs) return;
    const int64_t token = i / row_packs, column = i % row_packs * n;
    float sum[n] = {};
    if (residual) {
        const auto pack = load<n>(residual + i * n);
#pragma unroll
        for (int c = 0; c < n; ++c) sum[c] = to_float(pack.x[c]);
    }
    row_map += token * k;
#pragma unroll 4
    for (int j = 0; j < k; ++j) {
        const int64_t row = row_map[j];
        if (row < 0) continue;
        const auto pack = load<n>(rows + row * row_packs * n + column);
#pragma unroll
        for (int c = 0; c < n; ++c) sum[c] += to_float(pack.x[c]);
    }
    Pack<T, n> out;
#pragma unroll
    for (int c = 0; c < n; ++c) out.x[c] = from_float<T>(sum[c]);
    store(y + i * n, out);
}

// Each thread reads one pack of x once and writes it k times. If instead each row looked for its
// token (gather_rows), x would also pass through L2 k times, and take bandwidth from the stores.
template <int n, class T>
__global__ void __launch_bounds__(threads)
    scatter_kernel(T* rows, const T* x, const int32_t* row_map, uint32_t packs, uint32_t row_packs,
                   int k) {
    const uint32_t i = blockIdx.x * threads + threadIdx.x;
    if (i >= packs) return;
    const auto pack = load<n>(x + int64_t(i) * n);
    const uint32_t token = i / row_packs, column = i % row_packs;
    row_map += int64_t(token) * k;
#pragma unroll 4
    for (int j = 0; j < k; ++j)
        if (const int64_t row = row_map[j]; row >= 0)
            store_once(rows + (row * row_packs + column) * n, pack);
}

}  // namespace

void sum_rows(Tensor y, const Tensor& rows, const Tensor& row_map, const Tensor& residual) {
    const RowMapSizes s = sum_rows_sizes(y, rows, row_map, residual);
    OpSpan span(
        "sum_rows", double(s.N * s.k * s.h),
        bytes_of(row_map) + double(s.k + 1) * bytes_of(y) + (residual ? bytes_of(residual) : 0));
    with_type(y.dtype(), [&]<class T>(T) {
        constexpr int wide = pack_size<T>;
        const bool fits = packs_fit<T>(s.h, {y.data(), rows.data(), residual.data()});
        const int64_t row_packs = fits ? s.h / wide : s.h, packs = s.N * row_packs;
        LAUNCH((fits ? sum_kernel<wide, T> : sum_kernel<1, T>), unsigned(ceil_div(packs, threads)),
               threads, 0)
        (data<T>(y), data<T>(rows), row_map.as<int32_t>(), residual ? data<T>(residual) : nullptr,
         packs, int(row_packs), int(s.k));
    });
}

void scatter_rows(Tensor rows, const Tensor& x, const Tensor& row_map) {
    const RowMapSizes s = row_map_sizes(x, rows, row_map);
    OpSpan span("scatter_rows", 0, bytes_of(row_map) + double(s.k + 1) * bytes_of(x));
    with_type(x.dtype(), [&]<class T>(T) {
        constexpr int wide = pack_size<T>;
        const bool fits = packs_fit<T>(s.h, {rows.data(), x.data()});
        const int64_t row_packs = fits ? s.h / wide : s.h, packs = s.N * row_packs;
        check(packs < int64_t(1) << 32, "scatter_rows: the kernel divides 32-bit numbers");
        LAUNCH((fits ? scatter_kernel<wide, T> : scatter_kernel<1, T>),
               unsigned(ceil_div(packs, threads)), threads, 0)
        (data<T>(rows), data<T>(x), row_map.as<int32_t>(), uint32_t(packs), uint32_t(row_packs),
         int(s.k));
    });
}

}  // namespace ultrascale::ops
