// e5m6: eight numbers of 12 bits in three words of 32. In bf16, pack reads 2 bytes per element and
// writes 1.5, and unpack does the opposite. 16 lanes have a tile of 1 x 128; a thread has 8
// numbers.
#include "cuda/fp8_tile.cuh"
#include "ops_quantised_checks.h"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256, tiles_of_block = threads / 16;

// This thread's eight elements begin at `first`, in row `row` and tile `tile` of it.
struct RunPosition {
    int64_t first, row, tile;
    bool inside;
    __device__ RunPosition(int64_t R, int64_t C) {
        const int64_t index = int64_t(blockIdx.x) * tiles_of_block + threadIdx.x / 16;
        const int64_t tiles = C / scale_block, all = R * tiles;
        inside = index < all;
        const int64_t mine = inside ? index : all - 1;
        row = mine / tiles, tile = mine % tiles;
        first = mine * scale_block + threadIdx.x % 16 * 8;
    }
};

template <bool packs, class T>
__global__ void __launch_bounds__(threads)
    pack(int32_t* packed, float* scales, const Plain<T> source, int64_t R, int64_t C) {
    const RunPosition at(R, C);
    float x[8];
    if constexpr (packs) {
        source.eight(x, at.first, 0, 0);
    } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = source.one(at.first + j, 0, 0);
    }
    const float scale =
        scale_for(max_of_lanes<16>(max_magnitude(x)), formats::E5m6::largest(), true);
    if (!at.inside) return;
    if (threadIdx.x % 16 == 0) scales[at.tile * R + at.row] = scale;
    int32_t words[3];
    pack_eight(words, x, 1.0f / scale);
#pragma unroll
    for (int w = 0; w < 3; ++w) packed[at.first / 8 * 3 + w] = words[w];
}

template <class T>
__global__ void __launch_bounds__(threads)
    unpack(T* x, const int32_t* packed, const float* scales, int64_t R, int64_t C, bool packs) {
    const RunPosition at(R, C);
    if (!at.inside) return;
    int32_t words[3];
#pragma unroll
    for (int w = 0; w < 3; ++w) words[w] = packed[at.first / 8 * 3 + w];
    float eight[8];
    unpack_eight(eight, words, scales[at.tile * R + at.row]);
    constexpr int n = pack_size<T> < 8 ? pack_size<T> : 8;
#pragma unroll
    for (int part = 0; part < 8; part += n) {
        Pack<T, n> out;
#pragma unroll
        for (int j = 0; j < n; ++j) out.x[j] = from_float<T>(eight[part + j]);
        if (packs) {
            store(x + at.first + part, out);
        } else {
#pragma unroll
            for (int j = 0; j < n; ++j) x[at.first + part + j] = out.x[j];
        }
    }
}

unsigned blocks(int64_t R, int64_t C) {
    return unsigned(ceil_div(R * (C / scale_block), tiles_of_block));
}

}  // namespace

void pack_e5m6(Tensor packed, Tensor scales, const Tensor& x) {
    const int64_t R = x.rows(), C = x.cols();
    check_e5m6(packed, scales, R, C);
    OpSpan span("pack_e5m6", 2.0 * double(R * C), bytes_of(packed, scales, x));
    with_type(x.dtype(), [&]<class T>(T) {
        LAUNCH((aligned16({x.data()}) ? pack<true, T> : pack<false, T>), blocks(R, C), threads, 0)
        (packed.as<int32_t>(), scales.as<float>(), Plain<T>{data<T>(x)}, R, C);
    });
}

void unpack_e5m6(Tensor x, const Tensor& packed, const Tensor& scales) {
    const int64_t R = x.rows(), C = x.cols();
    check_e5m6(packed, scales, R, C);
    OpSpan span("unpack_e5m6", double(R * C), bytes_of(packed, scales, x));
    with_type(x.dtype(), [&]<class T>(T) {
        LAUNCH(unpack<T>, blocks(R, C), threads, 0)
        (data<T>(x), packed.as<int32_t>(), scales.as<float>(), R, C, aligned16({x.data()}));
    });
}

}  // namespace ultrascale::ops
