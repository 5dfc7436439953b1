// 16-byte accesses on both sides of a tile of 64 x 64: two loads and two stores per thread instead
// of eight of each, and 256 adjacent bytes per row of the tile. The tile is stored by columns, so
// the four numbers that a thread loads go to four of its rows.
//
//     in (rows, columns)              tile[column][row]                out (columns, rows)
//     [t0 t0 t0 t0|t1 t1 t1 t1| ..    [t0 .. ]                         [t0 t0 t0 t0|t1 t1 t1 t1| ..
//     [t16 ...                        [t0 .. ]    a word unused in     [t16 ...
//                                     [t0 .. ]    each row, as before
//                                     [t0 .. ]
//                                     [t1 .. ]
//
// Neighbouring threads now use banks that are 4 apart, so some conflicts remain: two turns instead
// of one. The time of the global memory accesses hides them.
//
// Blocks that run at the same time lie below each other in `in`, so side by side in `out`:
// neighbouring writes matter even more than neighbouring reads (on an H200, 96.2 % of a copy's
// bandwidth, and 94.5 % if the blocks lie side by side in `in`). No element is needed again:
// load_evict_last and __stcs tell L2 which lines to evict first (l2.cuh; 97.8 %, with __ldcs 96.9,
// without hints 91.5).
#include "../kernel.h"
#include "cuda/l2.cuh"

namespace ultrascale::kernels {
namespace {

constexpr int side = 64, threads = 512;
constexpr int groups = side / 4,
              turns = side * groups / threads;  // float4s per row of the tile, and per thread

__global__ void __launch_bounds__(threads)
    transpose(float* out, const float* in, int64_t rows, int64_t columns) {
    __shared__ float tile[side][side + 1];
    const int64_t row0 = int64_t(blockIdx.x) * side, column0 = int64_t(blockIdx.y) * side;
    const auto inside = [&](int row, int column) {
        return row0 + row < rows && column0 + column < columns;
    };
    if (rows % 4 == 0 && columns % 4 == 0) {  // every row begins at a multiple of 16 bytes
        float4 v[turns];
#pragma unroll
        for (int k = 0; k < turns; ++k)
            if (const int i = int(threadIdx.x) + k * threads, y = i / groups, x = i % groups * 4;
                inside(y, x))
                v[k] = load_evict_last(
                    reinterpret_cast<const float4*>(&in[(row0 + y) * columns + column0 + x]));
#pragma unroll
        for (int k = 0; k < turns; ++k) {
            const int i = int(threadIdx.x) + k * threads, y = i / groups, x = i % groups * 4;
            tile[x][y] = v[k].x, tile[x + 1][y] = v[k].y, tile[x + 2][y] = v[k].z,
            tile[x + 3][y] = v[k].w;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < turns; ++k)
            if (const int i = int(threadIdx.x) + k * threads, x = i / groups, y = i % groups * 4;
                inside(y, x))
                __stcs(reinterpret_cast<float4*>(&out[(column0 + x) * rows + row0 + y]),
                       make_float4(tile[x][y], tile[x][y + 1], tile[x][y + 2], tile[x][y + 3]));
    } else {
        for (int i = int(threadIdx.x); i < side * side; i += threads)
            if (const int y = i / side, x = i % side; inside(y, x))
                out[(column0 + x) * rows + row0 + y] = in[(row0 + y) * columns + column0 + x];
    }
}

void run(const Arguments& args) {
    const int64_t rows = args.size[0], columns = args.size[1];
    LAUNCH(transpose, dim3(unsigned(ceil_div(rows, side)), unsigned(ceil_div(columns, side))),
           threads, 0)
    (args.out.as<float>(), args.in[0].as<float>(), rows, columns);
}

const Registered here{"transpose", "16-byte accesses, blocks down the columns", run};

}  // namespace
}  // namespace ultrascale::kernels
