// Transpose through shared memory: a block reads the rows of a 32 x 32 tile, and writes its
// columns as rows of the output, so both accesses are coalesced.
//
//     in, by rows            tile                out, by rows
//     [-> -> -> ->]     [a b c d]           [a e i m]
//     [-> -> -> ->]     [e f g h]     -->   [b f j n]        thread x of the writing warp
//     [-> -> -> ->]     [i j k l]           [c g k o]        reads tile[x][y]: a column
//
// But each column of the tile lies in one bank: word 32 y + x is in bank x. The 32 threads that
// read a column wait for each other, for 32 turns.
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

constexpr int side = 32, thread_rows = 8;  // a thread moves side / thread_rows elements

__global__ void transpose(float* out, const float* in, int64_t rows, int64_t columns) {
    __shared__ float tile[side][side];
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
}

void run(const Arguments& args) {
    const int64_t rows = args.size[0], columns = args.size[1];
    const dim3 grid(unsigned(ceil_div(columns, side)), unsigned(ceil_div(rows, side))),
        block(side, thread_rows);
    LAUNCH(transpose, grid, block, 0)(args.out.as<float>(), args.in[0].as<float>(), rows, columns);
}

const Registered here{"transpose", "a tile in shared memory: both sides coalesced", run};

}  // namespace
}  // namespace ultrascale::kernels
