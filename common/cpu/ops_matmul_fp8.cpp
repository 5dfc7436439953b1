// Products of 8-bit matrices without tensor cores: the numbers with their scales, in fp32, by
// OpenBLAS. What tensor cores lose is emulated in core/accumulator.h.
#include "ops_fp8.h"

namespace ultrascale::ops {

static Tensor wide(const Quantised& q, ScaleGroup group) {
    Tensor x = Tensor::empty(q.values.shape(), DType::fp32, Memory::workspace);
    dequantise_floats(x, q, group);
    return x;
}

void matmul_fp8(Tensor d, const Quantised& a, const Quantised& b, const Fp8Product& product,
                const Tensor& addend) {
    const auto [M, N, K] = fp8_sizes(d, a, b, product, addend);
    OpSpan span("matmul_fp8", 2.0 * double(M) * double(N) * double(K),
                bytes_of(d, a.values, b.values) + (addend ? bytes_of(d) : 0));
    if (M == 0 || N == 0) return;
    if (K == 0) {  // an empty sum
        if (!addend) device_zero(d.data(), d.bytes());
        return;
    }
    const Tensor sum = widened_output(d), wide_a = wide(a, product.a), wide_b = wide(b, product.b);
    if (addend && sum.data() != d.data()) convert(sum, d);
    sgemm(Transpose::no, Transpose::yes, M, N, K, 1, wide_a.as<float>(), K, wide_b.as<float>(), K,
          addend ? 1 : 0, sum.as<float>(), N);
    if (sum.data() != d.data()) convert(d, sum);
}

const char* fp8_missing(ScaleGroup) { return ""; }

}  // namespace ultrascale::ops
