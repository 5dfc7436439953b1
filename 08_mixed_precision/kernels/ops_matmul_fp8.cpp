// Products of 8-bit matrices without tensor cores: the numbers with their scales, in fp32, by
// OpenBLAS, which is also what the trace shows. What tensor cores lose is emulated in
// ../accumulator.h.
#include "cpu/ops_common.h"
#include "ops_quantised_checks.h"

namespace ultrascale::ops {

static Tensor wide(const Quantised& q, ScaleGroup group) {
    Tensor x = Tensor::empty(q.values.shape(), DType::fp32, Memory::workspace);
    dequantise(x, q, group);
    return x;
}

void matmul_fp8(Tensor d, const Quantised& a, const Quantised& b, const Fp8Product& product,
                const Tensor& addend) {
    fp8_sizes(d, a, b, product, addend);
    const Tensor sum = widened_output(d);
    if (addend && sum.data() != addend.data()) copy(sum, addend);
    matmul(sum, wide(a, product.a), Transpose::no, wide(b, product.b), Transpose::yes,
           addend ? sum : Tensor());
    if (sum.data() != d.data()) copy(d, sum);
}

const char* fp8_missing(ScaleGroup) { return ""; }

}  // namespace ultrascale::ops
