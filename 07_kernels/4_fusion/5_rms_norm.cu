// RMS norm in one kernel: the row stays in registers from the sum of its squares to the product.
// The five kernels passed it on through memory; here it takes a few registers, and there are no
// temporaries.
//
//     x -> registers, squares -> block_sum -> * rsqrt * weight -> y
//     read 2                                                      write 2    bytes per element
//
// The weight takes 2 more, and is read again for each row; but after its first rows an SM has it in
// L1. The microscope, which has no caches, counts 6 bytes; memory moves 4.
//
// Each thread loads two packs of 8 elements at once; if a row is longer than 16384, the rest is
// read twice. __restrict__ promises that y and the weight do not overlap, so loads of the weight
// need not wait for the stores before them.
//
// The last few per cent: load_once and store_once tell L2 which lines to evict first (l2.cuh; 100
// instead of 96 % of a copy's bandwidth on an H200). And with LAUNCH_EARLY the next kernel's blocks
// take the places of this kernel's blocks as these become free, not only when the last one has
// ended. They wait there until they may read.
//
// A thread without a pack loads the row's last one. It could skip the load, but a load with a hint
// cannot be predicated: the compiler makes it a branch, and issues the second load only when the
// first one has arrived (0.147 instead of 0.127 ms).
#include "rows.cuh"

namespace ultrascale::kernels {
namespace {

using rows::Pack;
constexpr int kept = 2;  // packs in a thread's registers

template <int n>
__device__ float sum_of_squares(Pack<n> pack) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < n; ++j) sum += __bfloat162float(pack.x[j]) * __bfloat162float(pack.x[j]);
    return sum;
}

template <int n>
__device__ Pack<n> scaled(Pack<n> pack, float inverse, Pack<n> weight) {
#pragma unroll
    for (int j = 0; j < n; ++j)
        pack.x[j] = __float2bfloat16_rn(__bfloat162float(pack.x[j]) * inverse *
                                        __bfloat162float(weight.x[j]));
    return pack;
}

template <int n>
__global__ void __launch_bounds__(1024)
    norm(__nv_bfloat16* __restrict__ y, const __nv_bfloat16* __restrict__ x,
         const __nv_bfloat16* __restrict__ weight, int64_t columns) {
    const Pack<n>* from = reinterpret_cast<const Pack<n>*>(x + blockIdx.x * columns);
    const Pack<n>* weights = reinterpret_cast<const Pack<n>*>(weight);
    Pack<n>* to = reinterpret_cast<Pack<n>*>(y + blockIdx.x * columns);
    const auto at = [](int k) {
        return int(threadIdx.x + k * blockDim.x);
    };  // this thread's k-th pack
    const int packs = int(columns / n);
    let_next_kernel_start();
    wait_for_kernel_before();
    Pack<n> pack[kept];
#pragma unroll
    for (int k = 0; k < kept; ++k) pack[k] = load_once(&from[min(at(k), packs - 1)]);

    float squares = 0;
#pragma unroll
    for (int k = 0; k < kept; ++k)
        if (at(k) < packs) squares += sum_of_squares(pack[k]);
    for (int i = at(kept); i < packs; i += int(blockDim.x)) squares += sum_of_squares(from[i]);
    const float inverse = rsqrtf(rows::block_sum(squares) / float(columns) + rms_norm_epsilon);

#pragma unroll
    for (int k = 0; k < kept; ++k)
        if (const int i = at(k); i < packs)
            store_once(&to[i], scaled(pack[k], inverse, weights[i]));
    for (int i = at(kept); i < packs; i += int(blockDim.x))
        to[i] = scaled(from[i], inverse, weights[i]);
}

void run(const Arguments& args) { rms_norm(args.out, args.in[0], args.in[1]); }

const Registered here{"rms norm", "fused, the row in registers: 4 (and the weight)", run};

}  // namespace

void rms_norm(const Tensor& y, const Tensor& x, const Tensor& weight) {
    const int64_t columns = x.cols(), n = columns % 8 == 0 ? 8 : 1;
    const auto norm_of_rows = n == 8 ? norm<8> : norm<1>;
    LAUNCH_EARLY(norm_of_rows, unsigned(x.rows()), rows::threads_for(columns / n, kept), 0)
    (rows::data(y), rows::data(x), rows::data(weight), columns);
}

}  // namespace ultrascale::kernels
