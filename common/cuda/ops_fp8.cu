// Quantisation to 8 bits, in one or both orientations, and back.
//
// Bytes per element of a bf16 matrix: 2 read and 1 written, or 2 written in both orientations.
// Scales of tensors and rows need a pass before it, which reads 2. Every thread block has a tile of
// 128 x 128 in its registers (fp8_tile.cuh), where it also finds the scales of tiles and blocks.
#include "fp8_tile.cuh"

namespace ultrascale::ops {

namespace {

// ---- the pass before: magnitudes ----------------------------------------------------------------

// Any of the outputs may be null: rows (C / 128, R), columns (R / 128, C), tiles (R / 128, C /
// 128). Runs from the last rows to the first: the last rows were written most recently, and the
// first ones are read next, so both come from the L2 cache.
template <bool packs, class Source>
__global__ void __launch_bounds__(tile_threads)
    measure_tiles(float* rows, float* columns, float* tiles, const Source source, int64_t R,
                  int64_t C) {
    const TilePosition tile(R, C, gridDim.y - 1 - blockIdx.y);
    float x[8][8], largest[8];
    load_tile<packs>(x, source, tile);
    if (rows) {
        row_maxima(largest, x);
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (threadIdx.x % 16 == 0 && tile.row + i < R)
                rows[blockIdx.x * R + tile.row + i] = largest[i];
    }
    if (columns) {
        column_maxima(largest, x);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (threadIdx.x < 16 && tile.column + j < C)
                columns[blockIdx.y * C + tile.column + j] = largest[j];
    }
    if (tiles) {
        const float m = tile_maximum(x);
        if (threadIdx.x == 0) tiles[blockIdx.y * gridDim.x + blockIdx.x] = m;
    }
}

__device__ void write_amax(float* scales, float* amax, int64_t i, float m, float largest,
                           bool powers_of_two) {
    if (scales) scales[i] = scale_for(m, largest, powers_of_two);
    if (amax) amax[i] = fmaxf(amax[i], m);
}
// There is a thread for each column of partial (parts, n).
__global__ void __launch_bounds__(256)
    reduce_columns(float* scales, float* amax, const float* partial, int64_t parts, int64_t n,
                   float largest, bool powers_of_two) {
    const int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x;
    if (i >= n) return;
    float m = 0;
#pragma unroll 8
    for (int64_t p = 0; p < parts; ++p) m = fmaxf(m, partial[p * n + i]);
    write_amax(scales, amax, i, m, largest, powers_of_two);
}
// One block handles one column.
__global__ void __launch_bounds__(1024)
    reduce_one(float* scales, float* amax, const float* partial, int64_t parts, float largest,
               bool powers_of_two) {
    let_next_kernel_start(), wait_for_kernel_before();
    float m = 0;
#pragma unroll 8
    for (int64_t p = threadIdx.x; p < parts; p += 1024) m = fmaxf(m, partial[p]);
    m = block_max<1024>(m);
    if (threadIdx.x == 0) write_amax(scales, amax, 0, m, largest, powers_of_two);
}

// ---- rounding -----------------------------------------------------------------------------------

// y and t may be null. `tiles`, if it is not null, receives the tile's largest magnitude.
template <bool packs, class F, class Source>
__global__ void __launch_bounds__(tile_threads)
    quantise_tiles(F* y, F* t, float* tiles, const ScalesOf y_scales, const ScalesOf t_scales,
                   const Source source, int64_t R, int64_t C) {
    const TilePosition tile(R, C);
    const ScaleGroup group = y_scales.group;
    float x[8][8], whole = 0;
    load_tile<packs>(x, source, tile);
    if (tiles || group == ScaleGroup::block) whole = tile_maximum(x);
    if (tiles && threadIdx.x == 0) tiles[blockIdx.y * gridDim.x + blockIdx.x] = whole;
    const float block_scale = scale_for(whole, y_scales.largest, y_scales.powers_of_two);
    if (group == ScaleGroup::block && threadIdx.x == 0) {
        if (y) y_scales.scales[blockIdx.y * gridDim.x + blockIdx.x] = block_scale;
        if (t) t_scales.scales[blockIdx.x * gridDim.y + blockIdx.y] = block_scale;
    }
    // The scale of row or column i, whose largest magnitude in the tile is `largest`.
    const auto scale = [&](const ScalesOf& of, int64_t i, float largest) {
        return group == ScaleGroup::tensor ? of.scales[0]
               : group == ScaleGroup::row  ? of.scales[i]
               : group == ScaleGroup::tile ? scale_for(largest, of.largest, of.powers_of_two)
                                           : block_scale;
    };
    float largest[8] = {};
    if (y) {
        if (group == ScaleGroup::tile) row_maxima(largest, x);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int64_t row = tile.row + i;
            if (row >= R) break;
            const float s = scale(y_scales, row, largest[i]), factor = 1.0f / s;
            if (group == ScaleGroup::tile && threadIdx.x % 16 == 0)
                y_scales.scales[blockIdx.x * R + row] = s;
            if constexpr (packs) {
                if (tile.column < C) store_codes(y + row * C + tile.column, x[i], factor);
            } else {
                for (int j = 0; j < 8 && tile.column + j < C; ++j)
                    y[row * C + tile.column + j] = from_float<F>(x[i][j] * factor);
            }
        }
    }
    if (t) {
        __shared__ TransposedCodes codes;
        if (group == ScaleGroup::tile) column_maxima(largest, x);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int64_t column = min(tile.column + j, C - 1);
            const float s = scale(t_scales, column, largest[j]);
            if (group == ScaleGroup::tile && threadIdx.x < 16 && tile.column + j < C)
                t_scales.scales[blockIdx.y * C + column] = s;
            const float down[8] = {x[0][j], x[1][j], x[2][j], x[3][j],
                                   x[4][j], x[5][j], x[6][j], x[7][j]};
            put_column(codes, j, codes_of_eight<F>(down, 1.0f / s));
        }
        __syncthreads();
        R % 16 == 0 && reinterpret_cast<uintptr_t>(t) % 16 == 0
            ? store_transposed<true>(t, codes, tile)
            : store_transposed<false>(t, codes, tile);
    }
}

dim3 tiles_of(int64_t R, int64_t C) {
    check(blocks_of(R) < 65536, "quantise: a matrix with too many rows for a grid");
    return dim3(unsigned(blocks_of(C)), unsigned(blocks_of(R)));
}

// Calls f(std::true_type) if rows can be read and written in packs.
template <class F>
void with_packs(int64_t C, std::initializer_list<const void*> addresses, F&& f) {
    C % 8 == 0 && C > 0 && aligned16(addresses) ? f(std::true_type()) : f(std::false_type());
}

// Describes the source and destination at `address` and in y.
template <class Source>
void quantise_from(const Quantised& y, const Quantised& t, const Source& source,
                   const void* address, int64_t R, int64_t C, const Scaling& s,
                   const Tensor& amax) {
    const Quantised& one = y ? y : t;
    const DType dtype = one.values.dtype();
    const dim3 tiles = tiles_of(R, C);
    const auto partial = [&](int64_t parts, int64_t n) {
        return Tensor::empty({parts, n}, DType::fp32, Memory::workspace);
    };
    const auto scales = [](const Quantised& q) { return q ? q.scales.as<float>() : nullptr; };
    Tensor whole;
    if (s.group == ScaleGroup::tensor) whole = partial(int64_t(tiles.x) * tiles.y, 1);
    float* const tile_maxima = whole ? whole.as<float>() : nullptr;
    float* const to_amax = amax ? amax.as<float>() : nullptr;
    with_packs(C, {address, y ? y.values.data() : nullptr}, [&]<class Packs>(Packs) {
        if ((s.group == ScaleGroup::tensor && !s.given) || s.group == ScaleGroup::row) {
            Tensor rows, columns;
            if (s.group == ScaleGroup::row && y) rows = partial(tiles.x, R);
            if (s.group == ScaleGroup::row && t) columns = partial(tiles.y, C);
            LAUNCH((measure_tiles<Packs::value, Source>), tiles, tile_threads, 0)
            (rows ? rows.as<float>() : nullptr, columns ? columns.as<float>() : nullptr,
             tile_maxima, source, R, C);
            if (rows) reduce_amax(scales(y), nullptr, rows, R, dtype, s.powers_of_two);
            if (columns) reduce_amax(scales(t), nullptr, columns, C, dtype, s.powers_of_two);
            if (whole) reduce_amax(scales(one), to_amax, whole, 1, dtype, s.powers_of_two);
            if (whole && y && t && scales(y) != scales(t))
                cuda_check(cudaMemcpyAsync(scales(t), scales(y), sizeof(float),
                                           cudaMemcpyDeviceToDevice, cuda_compute()));
        }
        const float largest = largest_of(dtype);
        with_fp8(dtype, [&]<class F>(F) {
            LAUNCH((quantise_tiles<Packs::value, F, Source>), tiles, tile_threads, 0)
            (y ? data<F>(y.values) : nullptr, t ? data<F>(t.values) : nullptr,
             s.given && amax ? tile_maxima : nullptr,
             ScalesOf{scales(y), s.group, largest, s.powers_of_two},
             ScalesOf{scales(t), s.group, largest, s.powers_of_two}, source, R, C);
        });
    });
    if (s.given && amax) reduce_amax(nullptr, to_amax, whole, 1, dtype, false);
}

template <class X, class F>
__global__ void __launch_bounds__(256)
    widen(X* x, const F* y, const float* scales, ScaleGroup group, int64_t R, int64_t C) {
    const int64_t row = blockIdx.x, packs = C / 8;
    const auto scale = [=](int64_t column) {
        return scales[scale_index(group, row, column / scale_block, R, C)];
    };
    x += row * C, y += row * C;
    const bool fit = C % 8 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0 &&
                     reinterpret_cast<uintptr_t>(y) % 8 == 0;
    for (int64_t i = threadIdx.x; fit && i < packs; i += 256) {
        const Pack<F, 8> numbers = load<8>(y + 8 * i);
        const float s = scale(8 * i);
        constexpr int n = pack_size<X> < 8 ? pack_size<X> : 8;
#pragma unroll
        for (int part = 0; part < 8; part += n) {
            Pack<X, n> out;
#pragma unroll
            for (int j = 0; j < n; ++j) out.x[j] = from_float<X>(to_float(numbers.x[part + j]) * s);
            store(x + 8 * i + part, out);
        }
    }
    for (int64_t i = threadIdx.x; !fit && i < C; i += 256)
        x[i] = from_float<X>(to_float(y[i]) * scale(i));
}

}  // namespace

void reduce_amax(float* scales, float* amax, const Tensor& partial, int64_t n, DType dtype,
                 bool powers_of_two) {
    const int64_t parts = partial.numel() / n;
    const float largest = largest_of(dtype);
    if (n == 1) LAUNCH_EARLY(reduce_one, 1, 1024, 0)
    (scales, amax, partial.as<float>(), parts, largest, powers_of_two);
    else LAUNCH(reduce_columns, unsigned(ceil_div(n, 256)), 256, 0)(
        scales, amax, partial.as<float>(), parts, n, largest, powers_of_two);
}

void quantise(const Quantised& y, const Quantised& transposed, const Tensor& x,
              const Scaling& scaling, Tensor amax) {
    const int64_t R = x.rows(), C = x.cols();
    check_quantise(y, transposed, R, C, scaling, amax);
    OpSpan span("quantise", 2.0 * double(x.numel()),
                bytes_of(x) + bytes_in(y) + bytes_in(transposed));
    if (x.numel() == 0) return;
    with_type(x.dtype(), [&]<class T>(T) {
        quantise_from(y, transposed, Plain<T>{data<T>(x)}, x.data(), R, C, scaling, amax);
    });
}

void quantise_again(const Quantised& to, const Quantised& from, const Scaling& scaling) {
    const int64_t R = from.values.rows(), C = from.values.cols();
    with_fp8(from.values.dtype(), [&]<class F>(F) {
        const Scaled<F> numbers = {data<F>(from.values), from.scales.as<float>(),
                                   scaling.group == ScaleGroup::tile, R};
        quantise_from({}, to, numbers, from.values.data(), R, C, scaling, {});
    });
}

void dequantise(Tensor x, const Quantised& y, ScaleGroup group) {
    const int64_t R = x.rows(), C = x.cols();
    check_quantised(y, R, C, group, "dequantise: y (R, C) e4m3 or e5m2, its scales");
    OpSpan span("dequantise", double(x.numel()), bytes_of(x) + bytes_in(y));
    with_type(x.dtype(), [&]<class X>(X) {
        with_fp8(y.values.dtype(), [&]<class F>(F) {
            LAUNCH((widen<X, F>), unsigned(R), 256, 0)
            (data<X>(x), data<F>(y.values), y.scales.as<float>(), group, R, C);
        });
    });
}

}  // namespace ultrascale::ops
