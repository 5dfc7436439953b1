// Products of 8-bit matrices without tensor cores: the numbers are multiplied by their scales, and
// OpenBLAS multiplies the matrices in fp32; the trace shows both. ../accumulator.h emulates what
// tensor cores would lose.
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
