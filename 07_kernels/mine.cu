// Your kernel. `07_kernels --kernel mine` checks it like all others and ranks it among the kernels
// of its problem.
//
// Choose one of the problems that `--list` shows, name it in the line with Registered below, and
// write the kernel. args.size holds the problem's dimensions, args.in its inputs, args.out the
// output; the problem's entry in its folder's problems.cpp gives their shapes. Tensor::empty(shape,
// DType::fp32, Memory::workspace) allocates more memory, and DYNAMIC_SHARED(float, name) is dynamic
// shared memory. 1_first_steps/1_vector_add.cu explains the rest. Without a GPU, a kernel can use
// the part of CUDA that common/emulator/include has.
#include "kernel.h"

namespace ultrascale::kernels {
namespace {

// A transpose: out (columns, rows) = in (rows, columns), with one thread per element. The writes of
// a warp are far apart. Can you do better?
__global__ void mine(float* out, const float* in, int64_t rows, int64_t columns) {
    const int64_t column = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (column < columns) out[column * rows + row] = in[row * columns + column];
}

void run(const Arguments& args) {
    const int64_t rows = args.size[0], columns = args.size[1];
    LAUNCH(mine, dim3(unsigned(ceil_div(columns, 128)), unsigned(rows)), 128, 0)
    (args.out.as<float>(), args.in[0].as<float>(), rows, columns);
}

const Registered here{"transpose", "yours", run};

}  // namespace
}  // namespace ultrascale::kernels
