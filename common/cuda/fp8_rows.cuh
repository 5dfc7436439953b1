// Rows whose numbers leave in 8 bits: what the kernels of fused operations write, a kernel for any
// row, and the launches that a scaling needs. Private to common/cuda.
#pragma once

#include "fp8.cuh"

namespace ultrascale::ops {

constexpr int row_threads = 256;

// What a kernel writes, and the rows' or blocks' largest magnitudes if somebody asks for them. y is
// null where only these are wanted.
template <class F>
struct Output {
    F* y;
    ScalesOf of;
    float* amax;  // (N), or one for each thread block
    int64_t N;

    // The row that comes i-th. A launch that only measures begins with the last ones, which were
    // written most recently, and ends with those that the next launch reads first: both are then in
    // the L2 cache.
    __device__ int64_t row(int64_t i) const { return y ? i : N - 1 - i; }
    __device__ bool needs_amax() const { return amax || of.group == ScaleGroup::row; }
    // Stores the largest magnitude m of a row, and its scale, where they are wanted; all threads of
    // the row call it. Returns what its numbers are multiplied by, if it has a scale of its own.
    __device__ float factor_of_row(int64_t row, float m) const {
        if (amax && threadIdx.x == 0) amax[row] = m;
        const float scale = scale_for(m, of.largest, of.powers_of_two);
        if (of.group == ScaleGroup::row && threadIdx.x == 0) of.scales[row] = scale;
        return 1.0f / scale;
    }
};

// Scales n numbers of a row's tile in this lane, stores them and, once a tile, the scale. `lane0`:
// whether this is the tile's first lane; all lanes of a warp call it.
template <int n, class F>
__device__ void store_tile(const Output<F>& out, const float (&x)[n], int64_t row, int64_t columns,
                           int64_t column) {
    const float m = max_of_lanes<int(scale_block) / n>(max_magnitude(x));
    const float scale = scale_for(m, out.of.largest, out.of.powers_of_two);
    if (column >= columns) return;
    if (column % scale_block == 0) out.of.scales[column / scale_block * out.N + row] = scale;
    store_codes(out.y + row * columns + column, x, 1.0f / scale);
}

// A block for each row, a warp for each tile of it, four numbers in a lane.
template <class F, class Value>
__global__ void __launch_bounds__(row_threads)
    quantise_rows(const Output<F> out, const Value value, int64_t columns) {
    const int64_t row = out.row(blockIdx.x);
    const int lane = int(threadIdx.x) % 32;
    const auto for_each_tile = [&](const auto& take) {
        for (int64_t j = threadIdx.x / 32; j * scale_block < columns; j += row_threads / 32) {
            float y[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const int64_t i = j * scale_block + k * 32 + lane;
                y[k] = i < columns ? value(row, i) : 0.0f;
            }
            take(j, y);
        }
    };
    float factor = 0;
    if (out.needs_amax()) {
        float m = 0;
        for_each_tile([&](int64_t, const float(&y)[4]) { m = fmaxf(m, max_magnitude(y)); });
        factor = out.factor_of_row(row, block_max<row_threads>(m));
    }
    if (!out.y) return;
    if (out.of.group == ScaleGroup::tensor) factor = 1.0f / out.of.scales[0];
    for_each_tile([&](int64_t j, const float(&y)[4]) {
        float tile_factor = factor;
        if (out.of.group == ScaleGroup::tile) {
            const float scale =
                scale_for(max_of_lanes<32>(max_magnitude(y)), out.of.largest, out.of.powers_of_two);
            if (lane == 0) out.of.scales[j * out.N + row] = scale;
            tile_factor = 1.0f / scale;
        }
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (const int64_t i = j * scale_block + k * 32 + lane; i < columns)
                out.y[row * columns + i] = from_float<F>(y[k] * tile_factor);
    });
}

// Runs launch(output) once, or for the scale of a whole tensor twice: magnitudes first. parts: how
// many magnitudes a launch writes.
template <class Launch>
void launch_scaled(const Quantised& y, const Scaling& s, const Tensor& amax, int64_t parts,
                   const Launch& launch) {
    const DType dtype = y.values.dtype();
    const bool measure = s.group == ScaleGroup::tensor && (!s.given || amax);
    const Tensor partial =
        measure ? Tensor::empty({parts, 1}, DType::fp32, Memory::workspace) : Tensor();
    float* const magnitudes = measure ? partial.as<float>() : nullptr;
    float* const to_amax = amax ? amax.as<float>() : nullptr;
    with_fp8(dtype, [&]<class F>(F) {
        const auto output = [&](F* to, float* magnitudes) {
            return Output<F>{to,
                             {y.scales.as<float>(), s.group, largest_of(dtype), s.powers_of_two},
                             magnitudes,
                             y.values.rows()};
        };
        if (!s.given && measure) {
            launch(output(nullptr, magnitudes));
            reduce_amax(y.scales.as<float>(), to_amax, partial, 1, dtype, s.powers_of_two);
            return launch(output(data<F>(y.values), nullptr));
        }
        launch(output(data<F>(y.values), magnitudes));
        if (measure) reduce_amax(nullptr, to_amax, partial, 1, dtype, false);
    });
}

}  // namespace ultrascale::ops
