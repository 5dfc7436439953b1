// C = A B, one thread per result: the dot product of a row of A and a column of B. threadIdx.x
// walks down the rows, so the 32 threads of a warp have 32 rows and one column.
//
//                   column
//                B    |              - a load of A has 32 addresses, K floats apart: 32 sectors
//                     |                of 32 bytes for 4 bytes each
//        A            |              - a load of B is one address for all
//   row 0 ------->    0
//   row 1 ------->    1   C
//   row 2 ------->    2
//
// Each multiply-add takes two loads, and memory moves eight times what A's load asks for.
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

__global__ void product(float* C /* (M, N) */, const float* A /* (M, K) */,
                        const float* B /* (K, N) */, int64_t M, int64_t N, int64_t K) {
    const int64_t row = int64_t(blockIdx.x) * blockDim.x + threadIdx.x,
                  column = int64_t(blockIdx.y) * blockDim.y + threadIdx.y;
    if (row >= M || column >= N) return;
    float sum = 0;
    for (int64_t k = 0; k < K; ++k) {
        const float a = A[row * K + k];
        const float b = B[k * N + column];
        sum += a * b;
    }
    C[row * N + column] = sum;
}

void run(const Arguments& args) {
    const int64_t M = args.size[0], N = args.size[1], K = args.size[2];
    const dim3 block(32, 8), grid(unsigned(ceil_div(M, block.x)), unsigned(ceil_div(N, block.y)));
    LAUNCH(product, grid, block, 0)
    (args.out.as<float>(), args.in[0].as<float>(), args.in[1].as<float>(), M, N, K);
}

const Registered here{"product", "one thread per result; a warp has 32 rows", run};

}  // namespace
}  // namespace ultrascale::kernels
