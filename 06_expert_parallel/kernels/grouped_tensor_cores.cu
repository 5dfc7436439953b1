// Chooses the kernel that multiplies in groups: wgmma, mma, or neither.
#include "grouped_tensor_cores.cuh"

namespace ultrascale::ops {

namespace {

// Both kernels read 16 bytes at a time; mma's three stages take 96 KiB. A product without rows has
// no tensor map. (GPUs that have bf16 have mma.)
bool fits(const Tensor& x, const Tensor& y, const Tensor& w, const GroupSizes& n) {
    return x.dtype() == DType::bf16 && n.R > 0 && n.out % 8 == 0 && n.in % 8 == 0 &&
           n.R < int64_t(1) << 30 && aligned16({x.data(), y.data(), w.data()}) &&
           shared_memory_per_block() >= 96 * 1024;
}

bool run(GroupForm form, const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& addend,
         const Tensor& counts, int64_t M, int64_t N, int64_t K) {
    const GroupProduct p = {counts.as<int32_t>(), int(counts.numel()), int(M), int(N), int(K)};
    (hopper() ? grouped_wgmma : grouped_mma)(form, out, a, b, addend, p);
    return true;
}

}  // namespace

bool grouped_matmul_on_tensor_cores(const Tensor& y, const Tensor& x, const Tensor& w,
                                    const Tensor& counts) {
    const GroupSizes n = group_sizes(y, x, w, counts);
    return fits(x, y, w, n) && run(GroupForm::forward, y, x, w, {}, counts, n.R, n.out, n.in);
}

bool grouped_matmul_backward_input_on_tensor_cores(const Tensor& dx, const Tensor& dy,
                                                   const Tensor& w, const Tensor& counts) {
    const GroupSizes n = group_sizes(dy, dx, w, counts);
    return fits(dx, dy, w, n) && run(GroupForm::input, dx, dy, w, {}, counts, n.R, n.in, n.out);
}

bool grouped_matmul_backward_weight_on_tensor_cores(const Tensor& dw, const Tensor& dy,
                                                    const Tensor& x, const Tensor& counts,
                                                    const Tensor& addend) {
    const GroupSizes n = group_sizes(dy, x, dw, counts);
    return fits(x, dy, dw, n) && aligned16({addend.data()}) &&
           run(GroupForm::weight, dw, dy, x, addend, counts, n.out, n.in, 0);
}

}  // namespace ultrascale::ops
