// Your kernel. `07_kernels --kernel mine` checks it like all others and ranks it among the kernels
// of its problem.
//
// Name one of the problems that `--list` shows where it says Registered, and write the kernel.
// args.size holds the problem's dimensions, args.in its inputs, args.out the output (the problem's
// entry in its folder's problems.cpp says their shapes); more memory is Tensor::empty(shape,
// DType::fp32, Memory::workspace), dynamic shared memory DYNAMIC_SHARED(float, name).
// 1_first_steps/1_vector_add.cu explains the rest. Without a GPU the names in common/simt/include
// are what there is of CUDA.
#include "kernel.h"

namespace ultrascale::kernels {
namespace {

// A transpose: out (columns, rows) = in (rows, columns). One thread an element; its writes are far
// apart. Can you do better?
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
