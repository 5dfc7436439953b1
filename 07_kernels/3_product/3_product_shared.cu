// Tiles in shared memory: a block computes 32 x 32 results and loads the rows and columns for them
// into its SM once, 32 of K at a time.
//
//                       B  +----+
//              k ->        | b  |  32 x 32    for each step along K:
//                          +----+                 each thread brings one element of a and one of b;
//          A  +----+       +----+                 wait for all
//             | a  |  ->   | C  |                 each thread adds 32 products, read from shared
//             +----+       +----+                 memory; wait for all
//
// An element from global memory is used 32 times, so the traffic falls to a 32nd. The price is two
// loads from shared memory for each multiply-add (nvcc joins the loads of four neighbours in a into
// one). An SM can do 128 multiply-adds per clock, but in a clock its shared memory serves only one
// warp's load: 32 numbers, or one number for 32 threads.
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

constexpr int tile = 32;  // 32 x 32 threads: as many as a block may have

__global__ void __launch_bounds__(tile* tile)
    product(float* C /* (M, N) */, const float* A /* (M, K) */, const float* B /* (K, N) */,
            int64_t M, int64_t N, int64_t K) {
    __shared__ float a[tile][tile], b[tile][tile];
    const int x = int(threadIdx.x), y = int(threadIdx.y);
    const int64_t row = int64_t(blockIdx.y) * tile + y, column = int64_t(blockIdx.x) * tile + x;
    float sum = 0;
    // exercise 07.4 begin: load a 32 x 32 tile of each, wait, add 32 products, wait
    for (int64_t k0 = 0; k0 < K; k0 += tile) {
        // Zeros outside the matrices add nothing. A thread without a result still loads its
        // elements and waits with the others.
        a[y][x] = row < M && k0 + x < K ? A[row * K + k0 + x] : 0;
        b[y][x] = k0 + y < K && column < N ? B[(k0 + y) * N + column] : 0;
        __syncthreads();
        for (int k = 0; k < tile; ++k) sum += a[y][k] * b[k][x];
        __syncthreads();  // all have read before the next tiles arrive
    }
    // exercise 07.4 end
    if (row < M && column < N) C[row * N + column] = sum;
}

void run(const Arguments& args) {
    const int64_t M = args.size[0], N = args.size[1], K = args.size[2];
    const dim3 grid(unsigned(ceil_div(N, tile)), unsigned(ceil_div(M, tile)));
    LAUNCH(product, grid, dim3(tile, tile), 0)
    (args.out.as<float>(), args.in[0].as<float>(), args.in[1].as<float>(), M, N, K);
}

const Registered here{"product", "tiles of 32 x 32 in shared memory", run};

}  // namespace
}  // namespace ultrascale::kernels
