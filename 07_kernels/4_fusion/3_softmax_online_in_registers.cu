// The row stays in registers: it is read once and written once, 4 bytes per element, the least that
// softmax can move.
//
// Each thread loads its four packs of 8 elements before it looks at the first one, so that 64 bytes
// per thread are in flight (a thread with fewer packs loads the row's last one instead:
// 5_rms_norm.cu). A row of 8192 fits into the registers of 256 threads. Instead of x a thread keeps
// exp(x - its own maximum), so each exponential is computed once. After the only barrier, one
// factor makes all its numbers relative to the row's maximum and divides them by the row's sum:
//
//     exp(x - own max)  *  [ exp(own max - row's max) / row's sum ]
//
// If a row is longer than 32768 (1024 threads keep no more), the rest is read twice. Rows that are
// not a multiple of 8 have packs of one element.
#include "rows.cuh"

namespace ultrascale::kernels {
namespace {

using rows::Pack;
constexpr int kept = 4;  // packs in a thread's registers

template <int n>
__global__ void __launch_bounds__(1024)
    softmax(__nv_bfloat16* y, const __nv_bfloat16* x, int64_t columns) {
    const Pack<n>* from = reinterpret_cast<const Pack<n>*>(x + blockIdx.x * columns);
    Pack<n>* to = reinterpret_cast<Pack<n>*>(y + blockIdx.x * columns);
    const auto at = [](int k) {
        return int(threadIdx.x + k * blockDim.x);
    };  // this thread's k-th pack
    const int packs = int(columns / n);
    Pack<n> pack[kept];
#pragma unroll
    for (int k = 0; k < kept; ++k) pack[k] = load_once(&from[min(at(k), packs - 1)]);

    float e[kept][n];
    rows::MaxSum own;
#pragma unroll
    for (int k = 0; k < kept; ++k)
#pragma unroll
        for (int j = 0; j < n; ++j) {
            e[k][j] = at(k) < packs ? __bfloat162float(pack[k].x[j]) : -INFINITY;
            own.max = fmaxf(own.max, e[k][j]);
        }
    const float own_max = own.max;
#pragma unroll
    for (int k = 0; k < kept; ++k)
#pragma unroll
        for (int j = 0; j < n; ++j) e[k][j] = __expf(e[k][j] - own_max), own.sum += e[k][j];
    for (int i = at(kept); i < packs; i += int(blockDim.x)) own.add(from[i]);

    const rows::MaxSum row = rows::block_max_sum(own);
    const float divisor = 1.0f / row.sum, factor = __expf(own_max - row.max) * divisor;
#pragma unroll
    for (int k = 0; k < kept; ++k)
        if (const int i = at(k); i < packs) {
#pragma unroll
            for (int j = 0; j < n; ++j) pack[k].x[j] = __float2bfloat16_rn(e[k][j] * factor);
            store_once(&to[i], pack[k]);
        }
    for (int i = at(kept); i < packs; i += int(blockDim.x)) {
        Pack<n> again = from[i];
#pragma unroll
        for (int j = 0; j < n; ++j)
            again.x[j] =
                __float2bfloat16_rn(__expf(__bfloat162float(again.x[j]) - row.max) * divisor);
        to[i] = again;
    }
}

void run(const Arguments& args) {
    const int64_t columns = args.size[1], n = columns % 8 == 0 ? 8 : 1;
    LAUNCH(n == 8 ? softmax<8> : softmax<1>, unsigned(args.size[0]),
           rows::threads_for(columns / n, kept), 0)
    (rows::data(args.out), rows::data(args.in[0]), columns);
}

const Registered here{"softmax", "the row in registers: 4 bytes", run};

}  // namespace
}  // namespace ultrascale::kernels
