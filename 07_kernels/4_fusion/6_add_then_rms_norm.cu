// A transformer's layers add to a residual stream and normalise it: s = x + residual, y = norm(s).
// Both are outputs: the next addition (and the backward pass) needs s. Here two kernels do it, each
// as good as it can be by itself:
//
//     add      read 2 + 2    write 2     bytes per element
//     norm     read 2        write 2     5_rms_norm.cu; s has just been written, and is read again
//                                        (and 2 bytes of the weight)
//                            together 10, of which 8 are needed
#include "rows.cuh"

namespace ultrascale::kernels {
namespace {

template <int n>
__global__ void add(rows::Pack<n>* s, const rows::Pack<n>* x, const rows::Pack<n>* residual,
                    int64_t packs) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= packs) return;
    rows::Pack<n> sum = x[i];
    const rows::Pack<n> other = residual[i];
#pragma unroll
    for (int j = 0; j < n; ++j)
        sum.x[j] = __float2bfloat16_rn(__bfloat162float(sum.x[j]) + __bfloat162float(other.x[j]));
    s[i] = sum;
}

// n elements of each tensor at a time.
template <int n>
void launch_add(const Tensor& s, const Tensor& x, const Tensor& residual) {
    const auto packs_of = [](const Tensor& tensor) {
        return static_cast<rows::Pack<n>*>(tensor.data());
    };
    const int64_t packs = s.numel() / n;
    LAUNCH(add<n>, unsigned(ceil_div(packs, 256)), 256, 0)
    (packs_of(s), packs_of(x), packs_of(residual), packs);
}

void run(const Arguments& args) {
    const Tensor s = args.out.slice(0, 1),
                 y = args.out.slice(1, 2);  // out (2, rows, columns) = s, norm(s)
    s.numel() % 8 == 0 ? launch_add<8>(s, args.in[0], args.in[1])
                       : launch_add<1>(s, args.in[0], args.in[1]);
    rms_norm(y, s, args.in[2]);
}

const Registered here{"rms norm + residual", "two kernels: 10 bytes per element", run};

}  // namespace
}  // namespace ultrascale::kernels
