// 16-byte accesses, and no shared memory: a thread transposes 4 x 4 elements in its registers.
//
// It loads four float4s, from four rows, and stores four, to four rows of the output. A warp is 4 threads wide and 8 high, 16 columns and
// 32 rows: a request reads 8 pieces of 64 adjacent bytes and writes 4 pieces of 128. Every sector is filled whole by one request, which is
// all that matters, and no thread waits for another.
//
//     in (rows, columns)                     out (columns, rows)
//     [t0 t0 t0 t0|t1 t1 t1 t1| ...          [t0 t0 t0 t0|t4 t4 t4 t4|t8 ...
//     [t0 t0 t0 t0|t1 t1 t1 t1| ...          [t0 t0 t0 t0|t4 t4 t4 t4|t8 ...       4 rows of t0: its 4 columns
//     [t0 t0 t0 t0|t1 t1 t1 t1| ...          [t0 t0 t0 t0|t4 t4 t4 t4|t8 ...
//     [t0 t0 t0 t0|t1 t1 t1 t1| ...          [t0 t0 t0 t0|t4 t4 t4 t4|t8 ...
//     [t4 t4 t4 t4| ...                      [t1 t1 t1 t1|t5 ...
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

constexpr int wide = 4, high = 8, warps = 4;  // threads of a warp; a block's warps stand below each other

__global__ void transpose(float* out, const float* in, int64_t rows, int64_t columns) {
    const int64_t column = (int64_t(blockIdx.x) * wide + threadIdx.x) * 4, row = (int64_t(blockIdx.y) * high * warps + threadIdx.y) * 4;
    if (row >= rows || column >= columns) return;
    if (rows % 4 == 0 && columns % 4 == 0) {  // every row begins at a multiple of 16 bytes
        float4 a[4];
        for (int i = 0; i < 4; ++i) a[i] = *reinterpret_cast<const float4*>(in + (row + i) * columns + column);
        float* to = out + column * rows + row;
        *reinterpret_cast<float4*>(to) = make_float4(a[0].x, a[1].x, a[2].x, a[3].x);
        *reinterpret_cast<float4*>(to + rows) = make_float4(a[0].y, a[1].y, a[2].y, a[3].y);
        *reinterpret_cast<float4*>(to + 2 * rows) = make_float4(a[0].z, a[1].z, a[2].z, a[3].z);
        *reinterpret_cast<float4*>(to + 3 * rows) = make_float4(a[0].w, a[1].w, a[2].w, a[3].w);
    } else {
        for (int64_t r = row; r < min(row + 4, rows); ++r)
            for (int64_t c = column; c < min(column + 4, columns); ++c) out[c * rows + r] = in[r * columns + c];
    }
}

void run(const Arguments& args) {
    const int64_t rows = args.size[0], columns = args.size[1];
    const dim3 grid(unsigned(ceil_div(columns, 4 * wide)), unsigned(ceil_div(rows, 4 * high * warps))), block(wide, high * warps);
    LAUNCH(transpose, grid, block, 0)(args.out.as<float>(), args.in[0].as<float>(), rows, columns);
}

const Registered here{"transpose", "4 x 4 in a thread's registers, 16-byte accesses", run};

}  // namespace
}  // namespace ultrascale::kernels
