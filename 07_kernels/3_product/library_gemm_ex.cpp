// cuBLAS as most programs call it, PyTorch among them: cublasGemmEx, which chooses a kernel from
// the shape alone. The column "of cuBLAS", in contrast, compares with the fastest of all kernels
// that it could have chosen (common/cuda/ops_matmul.cpp), which can only be found by timing them.
#include "../problem.h"

#ifdef ULTRASCALE_CUDA
#include <cublas_v2.h>

#include "cuda/cublas.h"

namespace ultrascale::kernels {
namespace {

void gemm_ex(const Arguments& args) {
    static const cublasHandle_t handle = [] {
        compute_stream();  // selects the device
        cublasHandle_t h;
        cublas_check(cublasCreate(&h));
        cublas_check(cublasSetStream(h, cuda_compute()));
        return h;
    }();
    const int M = int(args.size[0]), N = int(args.size[1]), K = int(args.size[2]);
    const float one = 1, zero = 0;
    // Its columns are our rows: C^T (N, M) = B A^T.
    cublas_check(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, N, M, K, &one, args.in[1].data(),
                              CUDA_R_16BF, K, args.in[0].data(), CUDA_R_16BF, K, &zero,
                              args.out.data(), CUDA_R_16BF, N, CUBLAS_COMPUTE_32F,
                              CUBLAS_GEMM_DEFAULT));
}

}  // namespace

std::function<void(const Arguments&)> gemm_ex_library() { return gemm_ex; }

}  // namespace ultrascale::kernels
#else
namespace ultrascale::kernels {
std::function<void(const Arguments&)> gemm_ex_library() { return nullptr; }
}  // namespace ultrascale::kernels
#endif
