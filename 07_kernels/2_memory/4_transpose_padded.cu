// One unused word at the end of each of the tile's rows: word 33 y + x is in bank (y + x) % 32, so
// a column is spread over all 32 banks, as a row is.
//
//     bank    0 1 2 3 ...             0 1 2 3 ...
//     row 0   a b c d                 a b c d .          column a e i m: before in bank 0 alone,
//     row 1   e f g h                 . e f g h          now in banks 0 1 2 3
//     row 2   i j k l                 . . i j k l
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

constexpr int side = 32, thread_rows = 8;

__global__ void transpose(float* out, const float* in, int64_t rows, int64_t columns) {
    // exercise 07.2 begin: load the tile by rows, store it by columns; no bank conflicts
    __shared__ float tile[side][side + 1];
    const int64_t row0 = int64_t(blockIdx.y) * side, column0 = int64_t(blockIdx.x) * side;
    const int x = threadIdx.x;
    for (int y = threadIdx.y; y < side; y += thread_rows)
        if (row0 + y < rows && column0 + x < columns) {
            tile[y][x] = in[(row0 + y) * columns + column0 + x];
        }
    __syncthreads();
    for (int y = threadIdx.y; y < side; y += thread_rows)
        if (column0 + y < columns && row0 + x < rows) {
            out[(column0 + y) * rows + row0 + x] = tile[x][y];
        }
    // exercise 07.2 end
}

void run(const Arguments& args) {
    const int64_t rows = args.size[0], columns = args.size[1];
    const dim3 grid(unsigned(ceil_div(columns, side)), unsigned(ceil_div(rows, side))),
        block(side, thread_rows);
    LAUNCH(transpose, grid, block, 0)(args.out.as<float>(), args.in[0].as<float>(), rows, columns);
}

const Registered here{"transpose", "padding: no bank conflicts", run};

}  // namespace
}  // namespace ultrascale::kernels
