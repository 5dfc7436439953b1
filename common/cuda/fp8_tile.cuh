// A tile of 128 x 128 elements of a matrix in the registers of 256 threads, for the kernels that
// look for magnitudes in it, round it and transpose it. Private to common/cuda.
//
//     thread t has rows 8 (t / 16) .. + 7, columns 8 (t % 16) .. + 7
//
//     columns   0       8      16      24          120
//     rows 0   [ t 0 ][ t 1 ][ t 2 ][ t 3 ] ... [ t 15 ]     a warp loads and stores two rows at a
//          8   [ t16 ][ t17 ][ t18 ][ t19 ] ... [ t 31 ]     time; a transposed row of 8 is in one
//         ...                                                thread
//
// At the matrix's edges threads load the last rows and columns again: that changes no maximum, and
// the loads need no condition, so all of them are in flight at once.
#pragma once

#include "fp8.cuh"

namespace ultrascale::ops {

constexpr int tile_size = 128, tile_threads = 256;

// ---- sources of elements ------------------------------------------------------------------------

template <class T>
struct Plain {
    const T* x;
    __device__ void eight(float (&to)[8], int64_t i, int64_t, int64_t) const {
        if constexpr (sizeof(T) == 4) {
            load_floats(to, x + i);
        } else {
            const Pack<T, 8> pack = load<8>(x + i);
#pragma unroll
            for (int j = 0; j < 8; ++j) to[j] = to_float(pack.x[j]);
        }
    }
    __device__ float one(int64_t i, int64_t, int64_t) const { return to_float(x[i]); }
};
// Numbers in 8 bits, with the scales of tiles or rows.
template <class F>
struct Scaled {
    const F* x;
    const float* scales;
    bool tiles;
    int64_t R;
    __device__ float scale(int64_t row, int64_t column) const {
        return scales[tiles ? column / tile_size * R + row : row];
    }
    __device__ void eight(float (&to)[8], int64_t i, int64_t row, int64_t column) const {
        const Pack<F, 8> pack = load<8>(x + i);
        const float s = scale(row, column);
#pragma unroll
        for (int j = 0; j < 8; ++j) to[j] = to_float(pack.x[j]) * s;
    }
    __device__ float one(int64_t i, int64_t row, int64_t column) const {
        return to_float(x[i]) * scale(row, column);
    }
};

// ---- the tile -----------------------------------------------------------------------------------

struct TilePosition {
    int64_t R, C;
    int64_t row;
    int64_t column = int64_t(blockIdx.x) * tile_size + threadIdx.x % 16 * 8;
    __device__ TilePosition(int64_t R, int64_t C, unsigned tile = blockIdx.y)
        : R(R), C(C), row(int64_t(tile) * tile_size + threadIdx.x / 16 * 8) {}
};

// `packs`: 8 elements are loaded at once, since C is a multiple of 8.
template <bool packs, class Source>
__device__ void load_tile(float (&x)[8][8], const Source& source, const TilePosition& tile) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int64_t r = min(tile.row + i, tile.R - 1);
        if constexpr (packs) {
            const int64_t c = min(tile.column, tile.C - 8);
            source.eight(x[i], r * tile.C + c, r, c);
        } else {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const int64_t c = min(tile.column + j, tile.C - 1);
                x[i][j] = source.one(r * tile.C + c, r, c);
            }
        }
    }
}

// The largest magnitudes of this thread's rows, over the whole tile.
__device__ inline void row_maxima(float (&largest)[8], const float (&x)[8][8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) largest[i] = max_of_lanes<16>(max_magnitude(x[i]));
}
// The largest magnitudes of this thread's columns. All threads call it, once in a kernel.
__device__ inline void column_maxima(float (&largest)[8], const float (&x)[8][8]) {
    __shared__ Pack<float, 4> warp_maxima[tile_threads / 32][tile_size / 4], all[tile_size / 4];
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, first = lane % 16 * 2;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        float m = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) m = fmaxf(m, fabsf(x[i][j]));
        largest[j] = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 16));
    }
    if (lane < 16) {
        warp_maxima[warp][first] = {{largest[0], largest[1], largest[2], largest[3]}};
        warp_maxima[warp][first + 1] = {{largest[4], largest[5], largest[6], largest[7]}};
    }
    __syncthreads();
    if (threadIdx.x < tile_size / 4) {
        Pack<float, 4> m = warp_maxima[0][threadIdx.x];
        for (int w = 1; w < tile_threads / 32; ++w)
#pragma unroll
            for (int j = 0; j < 4; ++j) m.x[j] = fmaxf(m.x[j], warp_maxima[w][threadIdx.x].x[j]);
        all[threadIdx.x] = m;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 8; ++j) largest[j] = all[first + j / 4].x[j % 4];
}
// The largest magnitude of the whole tile. All threads call it, once in a kernel.
__device__ inline float tile_maximum(const float (&x)[8][8]) {
    float m = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) m = fmaxf(m, max_magnitude(x[i]));
    return block_max<tile_threads>(m);
}

// ---- transposed ---------------------------------------------------------------------------------

// The transposed tile's numbers on their way through shared memory: 128 rows (columns of the tile)
// of 16 chunks of 8 bytes. Chunk g of row c is at place g ^ (c / 8): when a warp writes, its lanes
// have 16 different c / 8, and so hit different banks.
using TransposedCodes = Pack<uint32_t, 2>[tile_size][16];

__device__ inline void put_column(TransposedCodes& codes, int j, const EightCodes& eight) {
    const int group = int(threadIdx.x) / 16, lane = int(threadIdx.x) % 16;
    codes[lane * 8 + j][group ^ lane] = eight;
}
// Writes them to t (C, R). `packs`: 16 at once, since R is a multiple of 16.
template <bool packs, class F>
__device__ void store_transposed(F* t, const TransposedCodes& codes, const TilePosition& tile) {
    const int64_t row0 = int64_t(blockIdx.y) * tile_size, column0 = int64_t(blockIdx.x) * tile_size;
#pragma unroll
    for (int turn = 0; turn < 4; ++turn) {
        const int index = turn * tile_threads + int(threadIdx.x), c = index / 8, q = index % 8;
        const EightCodes first = codes[c][2 * q ^ c / 8], second = codes[c][(2 * q + 1) ^ c / 8];
        const int64_t column = column0 + c, row = row0 + 16 * q;
        if (column >= tile.C || row >= tile.R) continue;
        F* const to = t + column * tile.R + row;
        const Pack<uint32_t, 4> words = {{first.x[0], first.x[1], second.x[0], second.x[1]}};
        if constexpr (packs) {
            store(reinterpret_cast<uint32_t*>(to), words);
        } else {
            for (int i = 0; i < 16 && row + i < tile.R; ++i)
                reinterpret_cast<uint8_t*>(to)[i] = uint8_t(words.x[i / 4] >> i % 4 * 8);
        }
    }
}

}  // namespace ultrascale::ops
