// The addition and the norm in one kernel: s is written to memory, and also stays in registers for
// the norm.
//
//     x, residual -> s -> memory                   read 2 + 2   write 2   bytes per element
//                    s    (registers) -> norm -> y              write 2   8: nothing is read twice
//                                                                         (but the weight, from L1)
//
// Each thread has one pack of x and one of the residual, so a row of 8192 takes 1024 threads; with
// 32 registers per thread, an SM holds two such blocks (97 % of a copy's bandwidth on an H200; with
// four packs and 256 threads 92.7 %, with two and 512 threads 91.5 %).
//
// The norm is computed from s as rounded to bf16, so that the backward pass, which reads s later,
// computes the same norm.
#include "rows.cuh"

namespace ultrascale::kernels {
namespace {

using rows::Pack;
constexpr int kept = 1;  // packs in a thread's registers

template <int n>
__global__ void __launch_bounds__(1024, 2)
    norm(__nv_bfloat16* s, __nv_bfloat16* y, const __nv_bfloat16* x, const __nv_bfloat16* residual,
         const __nv_bfloat16* weight, int64_t columns) {
    const Pack<n>* from = reinterpret_cast<const Pack<n>*>(x + blockIdx.x * columns);
    const Pack<n>* others = reinterpret_cast<const Pack<n>*>(residual + blockIdx.x * columns);
    const Pack<n>* weights = reinterpret_cast<const Pack<n>*>(weight);
    Pack<n>* sums = reinterpret_cast<Pack<n>*>(s + blockIdx.x * columns);
    Pack<n>* to = reinterpret_cast<Pack<n>*>(y + blockIdx.x * columns);
    const auto at = [](int k) {
        return int(threadIdx.x + k * blockDim.x);
    };  // this thread's k-th pack
    const int packs = int(columns / n);
    Pack<n> pack[kept], other[kept];
#pragma unroll
    for (int k = 0; k < kept; ++k)
        if (const int i = at(k); i < packs)
            pack[k] = load_once(&from[i]), other[k] = load_once(&others[i]);

    float squares = 0;
    const auto add = [&](Pack<n> a, Pack<n> b) {
#pragma unroll
        for (int j = 0; j < n; ++j) {
            a.x[j] = __float2bfloat16_rn(__bfloat162float(a.x[j]) + __bfloat162float(b.x[j]));
            squares += __bfloat162float(a.x[j]) * __bfloat162float(a.x[j]);
        }
        return a;
    };
#pragma unroll
    for (int k = 0; k < kept; ++k)
        if (const int i = at(k); i < packs) store_once(&sums[i], pack[k] = add(pack[k], other[k]));
    for (int i = at(kept); i < packs; i += int(blockDim.x)) sums[i] = add(from[i], others[i]);

    const float inverse = rsqrtf(rows::block_sum(squares) / float(columns) + rms_norm_epsilon);
    const auto write = [&](int i, Pack<n> p) {
        const Pack<n> w = weights[i];
#pragma unroll
        for (int j = 0; j < n; ++j)
            p.x[j] =
                __float2bfloat16_rn(__bfloat162float(p.x[j]) * inverse * __bfloat162float(w.x[j]));
        store_once(&to[i], p);
    };
#pragma unroll
    for (int k = 0; k < kept; ++k)
        if (const int i = at(k); i < packs) write(i, pack[k]);
    for (int i = at(kept); i < packs; i += int(blockDim.x)) write(i, sums[i]);
}

void run(const Arguments& args) {
    const int64_t columns = args.size[1], n = columns % 8 == 0 ? 8 : 1;
    LAUNCH(n == 8 ? norm<8> : norm<1>, unsigned(args.size[0]), rows::threads_for(columns / n, kept),
           0)
    (rows::data(args.out.slice(0, 1)), rows::data(args.out.slice(1, 2)), rows::data(args.in[0]),
     rows::data(args.in[1]), rows::data(args.in[2]), columns);
}

const Registered here{"rms norm + residual", "one kernel, s in registers: 8", run};

}  // namespace
}  // namespace ultrascale::kernels
