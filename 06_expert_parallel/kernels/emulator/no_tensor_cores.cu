// There are no tensor cores on the CPU (common/emulator): the plain kernels do everything.
#include "../grouped.cuh"

namespace ultrascale::ops {

bool grouped_matmul_on_tensor_cores(const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
    return false;
}
bool grouped_matmul_backward_input_on_tensor_cores(const Tensor&, const Tensor&, const Tensor&,
                                                   const Tensor&) {
    return false;
}
bool grouped_matmul_backward_weight_on_tensor_cores(const Tensor&, const Tensor&, const Tensor&,
                                                    const Tensor&, const Tensor&) {
    return false;
}

}  // namespace ultrascale::ops
