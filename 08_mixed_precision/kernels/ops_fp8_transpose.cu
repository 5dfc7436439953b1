// The transpose of a matrix of 8-bit numbers (1 byte read and 1 written per element), and scales
// from known magnitudes.
//
// With the scale of the tensor or of blocks the bytes do not change. The bytes of 8 rows of a
// column are gathered into two words, and leave through shared memory as in quantise.
#include "cuda/fp8_tile.cuh"
#include "ops_quantised_checks.h"

namespace ultrascale::ops {

namespace {

template <bool packs>
__global__ void __launch_bounds__(tile_threads)
    transpose_bytes(uint8_t* to, const uint8_t* from, int64_t R, int64_t C) {
    const TilePosition tile(R, C);
    EightCodes rows[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int64_t r = min(tile.row + i, R - 1);
        if constexpr (packs) {
            rows[i] =
                load<2>(reinterpret_cast<const uint32_t*>(from + r * C + min(tile.column, C - 8)));
        } else {
            rows[i] = {};
            for (int j = 0; j < 8; ++j)
                rows[i].x[j / 4] |= uint32_t(from[r * C + min(tile.column + j, C - 1)])
                                    << j % 4 * 8;
        }
    }
    __shared__ TransposedCodes codes;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        EightCodes column = {};
#pragma unroll
        for (int i = 0; i < 8; ++i)
            column.x[i / 4] |= (rows[i].x[j / 4] >> j % 4 * 8 & 0xffu) << i % 4 * 8;
        put_column(codes, j, column);
    }
    __syncthreads();
    R % 16 == 0 && reinterpret_cast<uintptr_t>(to) % 16 == 0
        ? store_transposed<true>(to, codes, tile)
        : store_transposed<false>(to, codes, tile);
}

__global__ void __launch_bounds__(256)
    transpose_scales(float* to, const float* from, int64_t rows, int64_t cols) {
    const int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x;
    if (i < rows * cols) to[i % cols * rows + i / cols] = from[i];
}

// One block finds the history's largest number.
__global__ void __launch_bounds__(256)
    scale_of_history(float* scale, float* history, const float* amax, int64_t at, int64_t n,
                     float largest, int margin) {
    float m = 0;
    for (int64_t i = threadIdx.x; i < n; i += 256) {
        const float kept = i == at ? *amax : history[i];
        if (i == at) history[i] = kept;
        if (kept < INFINITY) m = fmaxf(m, kept);
    }
    m = block_max<256>(m);
    if (threadIdx.x == 0) *scale = delayed_scale_of(m, largest, margin);
}

}  // namespace

void transpose_quantised(const Quantised& to, const Quantised& from, const Scaling& scaling) {
    const int64_t R = from.values.rows(), C = from.values.cols();
    check_quantise(from, to, R, C, scaling, {});
    OpSpan span("transpose_quantised", 2.0 * double(R * C), bytes_in(to) + bytes_in(from));
    if (R * C == 0) return;
    if (scaling.group == ScaleGroup::row || scaling.group == ScaleGroup::tile)
        return quantise_again(to, from, scaling);
    const bool packs = C % 8 == 0 && aligned16({from.values.data()});
    check(blocks_of(R) < 65536, "transpose_quantised: a matrix with too many rows for a grid");
    LAUNCH((packs ? transpose_bytes<true> : transpose_bytes<false>),
           dim3(unsigned(blocks_of(C)), unsigned(blocks_of(R))), tile_threads, 0)
    (static_cast<uint8_t*>(to.values.data()), static_cast<const uint8_t*>(from.values.data()), R,
     C);
    if (to.scales.data() == from.scales.data()) return;
    const int64_t rows = from.scales.rows(), cols = from.scales.cols();
    LAUNCH(transpose_scales, unsigned(ceil_div(rows * cols, 256)), 256, 0)
    (to.scales.as<float>(), from.scales.as<float>(), rows, cols);
}

void scale_of_amax(Tensor scale, const Tensor& amax, DType dtype, bool powers_of_two) {
    OpSpan span("scale_of_amax", 0, bytes_of(scale, amax));
    reduce_amax(scale.as<float>(), nullptr, amax, 1, dtype, powers_of_two);
}

void delayed_scale(Tensor scale, Tensor history, const Tensor& amax, int64_t step, DType dtype,
                   int margin) {
    OpSpan span("delayed_scale", 0, bytes_of(scale, history, amax));
    const int64_t n = history.numel();
    LAUNCH(scale_of_history, 1, 256, 0)
    (scale.as<float>(), history.as<float>(), amax.as<float>(), step % n, n, largest_of(dtype),
     margin);
}

}  // namespace ultrascale::ops
