// Rows and columns are exchanged: threadIdx.x walks along the columns, and a warp has one row and
// 32 neighbouring columns.
//
//                columns
//                B  | | | |            - a load of B has 32 neighbours: 128 bytes, 4 sectors, all
//                   | | | |              of them used (it is coalesced)
//        A          | | | |            - a load of A is one address for all
//   row  ------->   0 1 2 3  C         - results are neighbours, too
//
// The arithmetic has not changed at all. Each result still reads a whole row and a whole column, so
// N threads ask for the same element of A.
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

__global__ void product(float* C /* (M, N) */, const float* A /* (M, K) */,
                        const float* B /* (K, N) */, int64_t M, int64_t N, int64_t K) {
    const int64_t column = int64_t(blockIdx.x) * blockDim.x + threadIdx.x,
                  row = int64_t(blockIdx.y) * blockDim.y + threadIdx.y;
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
    const dim3 block(32, 8), grid(unsigned(ceil_div(N, block.x)), unsigned(ceil_div(M, block.y)));
    LAUNCH(product, grid, block, 0)
    (args.out.as<float>(), args.in[0].as<float>(), args.in[1].as<float>(), M, N, K);
}

const Registered here{"product", "a warp has 32 columns: coalesced", run};

}  // namespace
}  // namespace ultrascale::kernels
