// cuBLAS's fp8 product, for the column "of cuBLAS": e4m3 in, bf16 out, with one scale per matrix or
// per block. As in common/cuda/ops_matmul.cpp, our row-major tensors are column-major to cuBLAS, so
// its A is our B and its D is our C transposed; and the fastest of the kernels that it proposes is
// used. The cuBLAS manual describes it in "Narrow Precision Data Types Usage" and "128-element 1D
// and 128x128 2D Block Scaling".
#include "../problem.h"

#ifdef ULTRASCALE_CUDA
#include <map>
#include <optional>

#include "cuda/cublas.h"

namespace ultrascale::kernels {
namespace {

// The product at one size. It lives as long as the program.
class Plan {
public:
    explicit Plan(const Arguments& args) {
        const uint64_t M = uint64_t(args.size[0]), N = uint64_t(args.size[1]);
        const uint64_t K =
            uint64_t(4 * args.in[0].cols());  // with the zeros at a row's end (problem.h)
        const bool blocks = args.in[3].numel() > 1;
        cublas_check(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
        set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                                      : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
        set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                                      : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
        // Sums all of K on tensor cores, as 7_product_fp8.cu does.
        if (!blocks) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(1));
        cublas_check(cublasLtMatrixLayoutCreate(&b_, CUDA_R_8F_E4M3, K, N, int64_t(K)));
        cublas_check(cublasLtMatrixLayoutCreate(&a_, CUDA_R_8F_E4M3, K, M, int64_t(K)));
        cublas_check(cublasLtMatrixLayoutCreate(&c_, CUDA_R_16BF, N, M, int64_t(N)));
        point_to_scales(args);
        const cublasLtMatmulPreference_t preference = cublas_preference();
        std::vector<cublasLtMatmulHeuristicResult_t> proposals(8);
        int found = 0;
        if (cublasLtMatmulAlgoGetHeuristic(cublas_handle(), operation_, b_, a_, c_, c_, preference,
                                           int(proposals.size()), proposals.data(),
                                           &found) != CUBLAS_STATUS_SUCCESS)
            found = 0;  // it refuses sizes for which it has no kernel
        cublas_check(cublasLtMatmulPreferenceDestroy(preference));
        proposals.resize(size_t(found));
        std::erase_if(proposals,
                      [](const auto& proposal) { return proposal.state != CUBLAS_STATUS_SUCCESS; });
        if (!proposals.empty())
            kernel_ =
                proposals[fastest_of(proposals, [&](const auto& kernel) { launch(kernel, args); })];
    }

    bool run(const Arguments& args) const {
        if (!kernel_) return false;
        point_to_scales(args);
        launch(*kernel_, args);
        return true;
    }

private:
    template <class T>
    void set(cublasLtMatmulDescAttributes_t attribute, const T& value) const {
        cublas_check(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value));
    }
    void point_to_scales(const Arguments& args) const {
        set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(args.in[3].data()));
        set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(args.in[2].data()));
    }
    void launch(const cublasLtMatmulHeuristicResult_t& kernel, const Arguments& args) const {
        const float one = 1, zero = 0;
        const Tensor workspace = cublas_workspace(kernel);
        cublas_check(cublasLtMatmul(cublas_handle(), operation_, &one, args.in[1].data(), b_,
                                    args.in[0].data(), a_, &zero, args.out.data(), c_,
                                    args.out.data(), c_, &kernel.algo, workspace.data(),
                                    kernel.workspaceSize, cuda_compute()));
    }
    cublasLtMatmulDesc_t operation_ = nullptr;
    cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
    // The fastest kernel; empty if cuBLAS has none for this size.
    std::optional<cublasLtMatmulHeuristicResult_t> kernel_;
};

}  // namespace

std::function<bool(const Arguments&)> fp8_library() {
    return [plans = std::map<Sizes, Plan>()](const Arguments& args) mutable {
        return plans.try_emplace(args.size, args).first->second.run(args);
    };
}

}  // namespace ultrascale::kernels
#else
namespace ultrascale::kernels {
std::function<bool(const Arguments&)> fp8_library() { return nullptr; }
}  // namespace ultrascale::kernels
#endif
