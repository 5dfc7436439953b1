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
    // What numbers are multiplied by if the scale of the whole tensor is known, else 0.
    __device__ float factor_of_tensor() const {
        return y && of.group == ScaleGroup::tensor ? 1.0f / of.scales[0] : 0.0f;
    }
    // Stores the largest magnitude m of a row, and its scale, where they are wanted; all threads of
    // the row call it. Returns what its numbers are multiplied by: factor, if it has no scale of
    // its own.
    __device__ float factor_of_row(int64_t row, float m, float factor) const {
        if (amax && threadIdx.x == 0) amax[row] = m;
        if (of.group != ScaleGroup::row) return factor;
        const float scale = scale_for(m, of.largest, of.powers_of_two);
        if (threadIdx.x == 0) of.scales[row] = scale;
        return 1.0f / scale;
    }
};

// x as the operation alone would have stored it, so that fusion changes no bit.
template <class T, int n>
__device__ void as_stored(float (&x)[n]) {
    to_floats(x, from_floats<T>(x));
}

// Each pack's largest magnitude.
template <int n, int count, class T>
__device__ void max_magnitudes(float (&m)[count], const Pack<T, n> (&packs)[count]) {
#pragma unroll
    for (int p = 0; p < count; ++p) {
        float x[n];
        to_floats(x, packs[p]);
        m[p] = max_magnitude(x);
    }
}

// The largest numbers of `count` tiles, each in the same `lanes` lanes: m[p] is what this lane has
// of tile p. Lane i returns that of tile i * count / lanes. A lane gives its numbers of half of the
// tiles to another lane and gets that one's of the other half, with which it goes on; so 8 tiles in
// 16 lanes take 4 + 2 + 1 + 1 shuffles, not 8 * 4.
template <int lanes, int count>
__device__ float max_of_tile(const float (&m)[count]) {
    if constexpr (count == 1)
        return max_of_lanes<lanes>(m[0]);
    else {
        constexpr int half = count / 2;
        const bool upper = threadIdx.x & (lanes / 2);
        float kept[half];
#pragma unroll
        for (int p = 0; p < half; ++p) {
            const float given = upper ? m[p] : m[p + half];
            kept[p] =
                fmaxf(upper ? m[p + half] : m[p], __shfl_xor_sync(0xffffffffu, given, lanes / 2));
        }
        return max_of_tile<lanes / 2>(kept);
    }
}

// A thread has a row's numbers as packs of n. Pack p begins at column first + p * stride, with a
// stride of whole tiles; packs after the row's end are zeros. All lanes of a warp call both.

// What this lane's tile (max_of_tile) is multiplied by; stores its scale. m: each pack's magnitude.
template <int n, int count, class F>
__device__ float factor_of_tile(const Output<F>& out, const float (&m)[count], int64_t row,
                                int columns, int first, int stride) {
    constexpr int lanes = scale_block / n, share = lanes / count;  // share: of a tile
    const int lane = threadIdx.x % lanes;
    const float scale = scale_for(max_of_tile<lanes>(m), out.of.largest, out.of.powers_of_two);
    const int column = first - lane * n + lane / share * stride;
    if (lane % share == 0 && column < columns)
        out.of.scales[column / scale_block * out.N + row] = scale;
    return 1.0f / scale;
}
// Multiplies them by factor, either of the row or tensor, the same in all lanes, or of this lane's
// tile, and stores them.
template <int n, int count, class T, class F>
__device__ void store_packs(const Output<F>& out, const Pack<T, n> (&packs)[count], float factor,
                            int64_t row, int columns, int first, int stride) {
    constexpr int lanes = scale_block / n, share = lanes / count;
#pragma unroll
    for (int p = 0; p < count; ++p) {
        const float of_pack = __shfl_sync(0xffffffffu, factor, p * share, lanes);
        float x[n];
        to_floats(x, packs[p]);
        if (const int column = first + p * stride; column < columns)
            store_codes(out.y + row * columns + column, x, of_pack);
    }
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
            as_stored<typename Value::Stored>(y);
            take(j, y);
        }
    };
    float factor = out.factor_of_tensor();
    if (out.needs_amax()) {
        float m = 0;
        for_each_tile([&](int64_t, const float(&y)[4]) { m = fmaxf(m, max_magnitude(y)); });
        factor = out.factor_of_row(row, block_max<row_threads>(m), factor);
    }
    if (!out.y) return;
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
