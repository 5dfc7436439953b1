// Operations whose result is written in 8 bits. The CPU runs their parts one after the other, and
// the trace shows them so.
#include "core/ops.h"
#include "ops_quantised_checks.h"

namespace ultrascale::ops {

void rmsnorm_forward_quantised(const Quantised& y, Tensor rstd, const Tensor& x,
                               const Tensor& weight, float eps, const Scaling& scaling,
                               Tensor amax) {
    norm_sizes(y, rstd, x, weight, scaling, amax);
    const Tensor narrow = Tensor::empty({x.rows(), x.cols()}, x.dtype(), Memory::workspace);
    rmsnorm_forward(narrow, rstd, x, weight, eps);
    quantise(y, {}, narrow, scaling, amax);
}

void swiglu_forward_quantised(const Quantised& y, const Tensor& gate_up, const Scaling& scaling,
                              Tensor amax) {
    const auto [N, F] = swiglu_sizes(y, gate_up, scaling, amax);
    const Tensor narrow = Tensor::empty({N, F}, gate_up.dtype(), Memory::workspace);
    swiglu_forward(narrow, gate_up);
    quantise(y, {}, narrow, scaling, amax);
}

}  // namespace ultrascale::ops
