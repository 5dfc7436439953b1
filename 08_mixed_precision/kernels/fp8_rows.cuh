// Rows whose numbers are written in 8 bits: the output of the fused operations' kernels, a kernel
// for any row, and the launches that a scaling needs. Private to this folder.
#pragma once

#include "cuda/fp8.cuh"

namespace ultrascale::ops {

constexpr int row_threads = 256;

// A kernel's output, and the rows' or blocks' largest magnitudes if they are asked for. y is null
// if only these are wanted.
template <class F>
struct Output {
    F* y;
    ScalesOf of;
    float* amax;  // (N), or one for each thread block
    int64_t N;

    // The i-th row to be processed. A launch that only measures begins with the last rows, which
    // were written most recently, and ends with those that the next launch reads first: so both are
    // in the L2 cache.
    __device__ int64_t row(int64_t i) const { return y ? i : N - 1 - i; }
    __device__ bool needs_amax() const { return amax || of.group == ScaleGroup::row; }
    // The factor for numbers if the scale of the whole tensor is known, otherwise 0.
    __device__ float factor_of_tensor() const {
        return y && of.group == ScaleGroup::tensor ? 1.0f / of.scales[0] : 0.0f;
    }
    // The factor for a row with the largest magnitude m; stores its scale. All its threads call it.
    __device__ float factor_of_row(int64_t row, float m) const {
        const float scale = scale_for(m, of.largest, of.powers_of_two);
        if (threadIdx.x == 0) of.scales[row] = scale;
        return 1.0f / scale;
    }
};

// Rounds x as the operation alone would have stored it, so that fusion changes no bit.
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

// Returns the largest numbers of `count` tiles, each in the same `lanes` lanes: m[p] is this lane's
// part of tile p, and lane i returns the result of tile i * count / lanes. In each round a lane
// gives its numbers of half of the tiles to another lane, and takes that lane's numbers of the
// other half. So 8 tiles in 16 lanes take 4 + 2 + 1 + 1 shuffles, not 8 * 4.
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

// A thread has numbers of a row as packs of n. Pack p begins at column first + p * stride, with a
// stride of whole tiles; packs after the row's end are zeros. All lanes of a warp call the
// functions below.
struct ModulePath {
    int64_t row;
    int columns, first, stride;
    int64_t part;  // of the output, whose largest magnitude is amax[part]
};

// The factor for this lane's tile (max_of_tile); stores the tile's scale. m: each pack's magnitude.
template <int n, int count, class F>
__device__ float factor_of_tile(const Output<F>& out, const float (&m)[count],
                                const ModulePath& at) {
    constexpr int lanes = scale_block / n, share = lanes / count;  // share: of a tile
    const int lane = threadIdx.x % lanes;
    const float scale = scale_for(max_of_tile<lanes>(m), out.of.largest, out.of.powers_of_two);
    const int column = at.first - lane * n + lane / share * at.stride;
    if (lane % share == 0 && column < at.columns)
        out.of.scales[column / scale_block * out.N + at.row] = scale;
    return 1.0f / scale;
}
// Finds the scale of this kind, unless it is the whole tensor's, and stores the numbers multiplied
// by its inverse. largest(m): the largest m among the threads with the same `part`.
template <ScaleGroup kind, int n, int count, class T, class F, class Largest>
__device__ void scale_and_store(const Output<F>& out, const Pack<T, n> (&packs)[count],
                                const ModulePath& at, const Largest& largest) {
    float m[count], factor = 0;
    if (kind != ScaleGroup::tensor || out.amax) max_magnitudes(m, packs);
    if constexpr (kind == ScaleGroup::tile) {
        factor = factor_of_tile<n>(out, m, at);
    } else if constexpr (kind == ScaleGroup::row) {
        factor = out.factor_of_row(at.row, largest(max_magnitude(m)));
    } else {
        if (out.amax) {
            const float whole = largest(max_magnitude(m));
            if (threadIdx.x == 0) out.amax[at.part] = whole;
        }
        if (!out.y) return;
        factor = out.factor_of_tensor();
    }
#pragma unroll
    for (int p = 0; p < count; ++p) {
        float pack_factor = factor;
        if constexpr (kind == ScaleGroup::tile) {
            constexpr int lanes = scale_block / n;
            pack_factor = __shfl_sync(0xffffffffu, factor, p * (lanes / count), lanes);
        }
        float x[n];
        to_floats(x, packs[p]);
        if (const int column = at.first + p * at.stride; column < at.columns)
            store_codes(out.y + at.row * at.columns + column, x, pack_factor);
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
        m = block_max<row_threads>(m);
        if (out.amax && threadIdx.x == 0) out.amax[row] = m;
        if (out.of.group == ScaleGroup::row) factor = out.factor_of_row(row, m);
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

// Runs launch<F, kind>(output) once, or twice for the scale of a whole tensor: magnitudes first.
// parts: how many magnitudes a launch writes.
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
        const auto start = [&](const Output<F>& out) {
            using enum ScaleGroup;
            if (s.group == tile) return launch.template operator()<F, tile>(out);
            if (s.group == row) return launch.template operator()<F, row>(out);
            launch.template operator()<F, tensor>(out);
        };
        if (!s.given && measure) {
            start(output(nullptr, magnitudes));
            reduce_amax(y.scales.as<float>(), to_amax, partial, 1, dtype, s.powers_of_two);
            return start(output(data<F>(y.values), nullptr));
        }
        start(output(data<F>(y.values), magnitudes));
        if (measure) reduce_amax(nullptr, to_amax, partial, 1, dtype, false);
    });
}

}  // namespace ultrascale::ops
