// Coalescing, seen as bandwidth: out[i] = in[i * stride].
//
// Memory delivers sectors of 32 bytes, eight floats. At stride 1 a warp's load is 128 adjacent
// bytes, four sectors, all of them used. From stride 8 on, each of the 32 threads needs a sector of
// its own, and 28 of its 32 bytes are moved for nothing.
//
//     stride 1   [0 1 2 3 4 5 6 7][8 ...                          4 sectors for 32 threads
//     stride 2   [0 . 1 . 2 . 3 .][4 . 5 . 6 . 7 .][8 ...         8
//     stride 8   [0 . . . . . . .][1 . . . . . . .][2 ...        32
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

__global__ void copy_strided(float* out, const float* in, int64_t n, int64_t stride) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i * stride];
}

void run(const Arguments& args) {
    const int64_t n = args.size[0], stride = args.size[1];
    LAUNCH(copy_strided, unsigned(ceil_div(n, 256)), 256, 0)
    (args.out.as<float>(), args.in[0].as<float>(), n, stride);
}

const Registered here{"strided copy", "neighbouring threads, distant addresses", run};

}  // namespace
}  // namespace ultrascale::kernels
