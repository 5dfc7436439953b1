// Applies the scales of rows to a product that cuBLAS computed without them: reads 4 bytes per
// element, and writes d.
#include "cuda/ops_common.cuh"
#include "fp8_row_scales.h"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;

// N is a multiple of 4. A thread has 4 elements of a row.
template <class D>
__global__ void __launch_bounds__(threads)
    scale_rows(D* d, const float* sums, const float* scales_a, const float* scales_b, int64_t N,
               const D* addend) {
    const int64_t row = blockIdx.x, column = (int64_t(blockIdx.y) * threads + threadIdx.x) * 4;
    if (column >= N) return;
    const int64_t here = row * N + column;
    const float scale = scales_a[row];
    const Pack<float, 4> x = load<4>(sums + here), s = load<4>(scales_b + column);
    Pack<D, 4> out;
    if (addend) out = load<4>(addend + here);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float product = scale * s.x[j] * x.x[j];
        out.x[j] = from_float<D>(addend ? to_float(out.x[j]) + product : product);
    }
    store(d + here, out);
}

}  // namespace

void apply_row_scales(const Tensor& d, const Tensor& sums, const Tensor& scales_a,
                      const Tensor& scales_b, const Tensor& addend) {
    const int64_t M = sums.rows(), N = sums.cols(), parts = ceil_div(N, threads * 4);
    check(parts < 65536, "matmul_fp8: rows too long for a grid");
    with_type(d.dtype(), [&]<class D>(D) {
        LAUNCH(scale_rows<D>, dim3(unsigned(M), unsigned(parts)), threads, 0)
        (data<D>(d), sums.as<float>(), scales_a.as<float>(), scales_b.as<float>(), N,
         addend ? data<D>(addend) : nullptr);
    });
}

}  // namespace ultrascale::ops
