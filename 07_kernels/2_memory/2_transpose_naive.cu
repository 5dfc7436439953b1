// Transpose: out (columns, rows) = in (rows, columns), with one thread per element.
//
// A warp reads 32 neighbours of a row: four sectors. It writes them to 32 rows of the output: 32
// sectors, and it fills an eighth of each. Neighbouring warps fill the rest, if the sectors are
// still in L2 by then.
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

__global__ void transpose(float* out, const float* in, int64_t rows, int64_t columns) {
    const int64_t column = int64_t(blockIdx.x) * 32 + threadIdx.x,
                  row = int64_t(blockIdx.y) * 8 + threadIdx.y;
    if (row < rows && column < columns) {
        out[column * rows + row] = in[row * columns + column];
    }
}

void run(const Arguments& args) {
    const int64_t rows = args.size[0], columns = args.size[1];
    const dim3 grid(unsigned(ceil_div(columns, 32)), unsigned(ceil_div(rows, 8))), block(32, 8);
    LAUNCH(transpose, grid, block, 0)(args.out.as<float>(), args.in[0].as<float>(), rows, columns);
}

const Registered here{"transpose", "coalesced reads, scattered writes", run};

}  // namespace
}  // namespace ultrascale::kernels
