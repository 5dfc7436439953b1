// Products of 8-bit matrices: with scales of tensors and rows by cuBLASLt, with scales of tiles and
// blocks by our own kernel (../fp8_blocks_wgmma.cu).
//
// As in ops_matmul.cpp, our row-major tensors are column-major to cuBLAS, so its A is our b, its B
// our a, and its D is d transposed; and we use the fastest of the kernels that it proposes. cuBLAS
// manual, "Narrow Precision Data Types Usage".
#include <map>
#include <optional>
#include <tuple>

#include "../fp8_blocks.h"
#include "../fp8_row_scales.h"
#include "../ops_quantised_checks.h"
#include "core/ops.h"
#include "core/trace.h"
#include "cuda/cublas.h"

namespace ultrascale::ops {

namespace {

cudaDataType_t cuda_type(DType dtype) {
    switch (dtype) {
        case DType::fp32: return CUDA_R_32F;
        case DType::bf16: return CUDA_R_16BF;
        case DType::fp16: return CUDA_R_16F;
        case DType::e4m3: return CUDA_R_8F_E4M3;
        case DType::e5m2: return CUDA_R_8F_E5M2;
        default: check(false, "matmul_fp8: a dtype that it does not take");
    }
    return CUDA_R_32F;
}

// Products with the same key share a cuBLAS kernel.
struct Product {
    int64_t M, N, K;
    DType a, b, d;
    ScaleGroup scales;
    bool fast, add;
    auto key() const { return std::tuple(M, N, K, a, b, d, scales, fast, add); }
    bool operator<(const Product& other) const { return key() < other.key(); }
};

struct Pointers {
    const void *a, *b;
    const float *scales_a, *scales_b;  // null: 1
    const void* addend;                // d itself if nothing is added
    void* d;
};

// One product, ready to run. It lives as long as the program.
class Plan {
public:
    explicit Plan(const Product& p)
        : beta_(p.add ? 1.0f : 0.0f), rows_(p.scales == ScaleGroup::row) {
        cublas_check(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);  // both have k along their rows
        set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(p.fast));
        const auto mode = rows_ ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
        set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
        set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
        const auto layout = [](DType dtype, int64_t rows, int64_t cols) {
            cublasLtMatrixLayout_t l;
            cublas_check(cublasLtMatrixLayoutCreate(&l, cuda_type(dtype), uint64_t(cols),
                                                    uint64_t(rows), cols));
            return l;
        };
        a_ = layout(p.a, p.M, p.K), b_ = layout(p.b, p.N, p.K), d_ = layout(p.d, p.M, p.N);
    }

    // Asks for kernels, and chooses the fastest for a large product; d is overwritten. Returns
    // false if cuBLAS has none.
    bool choose(const Product& p, const Pointers& at) {
        point_to_scales(at);
        const cublasLtMatmulPreference_t preference = cublas_preference();
        std::vector<cublasLtMatmulHeuristicResult_t> proposals(large(p) ? 16 : 1);
        int found = 0;
        if (cublasLtMatmulAlgoGetHeuristic(cublas_handle(), operation_, b_, a_, d_, d_, preference,
                                           int(proposals.size()), proposals.data(),
                                           &found) != CUBLAS_STATUS_SUCCESS)
            found = 0;  // cuBLAS refuses products for which it has no kernel
        cublas_check(cublasLtMatmulPreferenceDestroy(preference));
        proposals.resize(size_t(found));
        std::erase_if(proposals,
                      [](const auto& proposal) { return proposal.state != CUBLAS_STATUS_SUCCESS; });
        if (proposals.empty()) return false;
        const size_t best = proposals.size() == 1
                                ? 0
                                : fastest_of(proposals, [&](const auto& k) { launch(k, at); });
        kernel_ = proposals[best];
        return true;
    }
    void run(const Pointers& at) {
        point_to_scales(at);
        launch(*kernel_, at);
    }

private:
    static bool large(const Product& p) {
        return gemm_tuning() && 2.0 * double(p.M) * double(p.N) * double(p.K) >= 1e10;
    }
    template <class T>
    void set(cublasLtMatmulDescAttributes_t attribute, const T& value) const {
        cublas_check(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value));
    }
    void point_to_scales(const Pointers& at) const {
        set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(at.scales_b));
        set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(at.scales_a));
    }
    void launch(const cublasLtMatmulHeuristicResult_t& kernel, const Pointers& at) const {
        const float one = 1;
        const Tensor workspace = cublas_workspace(kernel);
        cublas_check(cublasLtMatmul(cublas_handle(), operation_, &one, at.b, b_, at.a, a_, &beta_,
                                    at.addend, d_, at.d, d_, &kernel.algo, workspace.data(),
                                    kernel.workspaceSize, cuda_compute()));
    }
    float beta_;
    bool rows_;
    cublasLtMatmulDesc_t operation_ = nullptr;
    cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
    std::optional<cublasLtMatmulHeuristicResult_t> kernel_;
};

// Returns the plan of this product; null if cuBLAS has no kernel for it.
Plan* plan_for(const Product& p, Pointers at, const Tensor& d) {
    static auto& plans = *new std::map<Product, std::optional<Plan>>;
    const auto [it, is_new] = plans.try_emplace(p, std::in_place, p);
    if (is_new) {
        Tensor scratch;  // if d's values are still needed
        if (p.add) {
            scratch = Tensor::zeros(d.shape(), d.dtype(), Memory::workspace);
            at.d = scratch.data();
        }
        if (!it->second->choose(p, at)) it->second.reset();
    }
    return it->second ? &*it->second : nullptr;
}

void by_cublas(const Tensor& d, const Quantised& a, const Quantised& b, const Product& p,
               const Tensor& addend) {
    const Pointers at = {a.values.data(),
                         b.values.data(),
                         a.scales.as<float>(),
                         b.scales.as<float>(),
                         addend ? addend.data() : d.data(),
                         d.data()};
    if (Plan* plan = plan_for(p, at, d)) return plan->run(at);
    // If cuBLAS has no kernel that knows the scales of rows, they are applied afterwards.
    check(p.scales == ScaleGroup::row, "matmul_fp8: cuBLAS has no kernel for this product");
    const Tensor sums = Tensor::empty({p.M, p.N}, DType::fp32, Memory::workspace);
    const Product plain = {p.M, p.N, p.K, p.a, p.b, DType::fp32, ScaleGroup::tensor, p.fast, false};
    const Pointers unscaled = {at.a, at.b, nullptr, nullptr, sums.data(), sums.data()};
    Plan* const plan = plan_for(plain, unscaled, sums);
    check(plan, "matmul_fp8: cuBLAS has no kernel for this product");
    plan->run(unscaled);
    apply_row_scales(d, sums, a.scales, b.scales, addend);
}

void by_our_kernel(const Tensor& d, const Quantised& a, const Quantised& b, bool b_tiles,
                   const Tensor& addend) {
    const ProductSizes n = {a.values.rows(), b.values.rows(), a.values.cols()};
    const Fp8Blocks product = {n.M,
                               n.N,
                               n.K,
                               a.values.data(),
                               b.values.data(),
                               n.K,
                               n.K,
                               a.scales.as<float>(),
                               b.scales.as<float>(),
                               b.scales.cols(),
                               a.values.dtype() == DType::e5m2};
    if (d.dtype() != DType::fp16) return fp8_blocks_wgmma(d, product, b_tiles, addend);
    const Tensor sum = Tensor::empty(d.shape(), DType::fp32, Memory::workspace);
    if (addend) copy(sum, addend);
    fp8_blocks_wgmma(sum, product, b_tiles, addend ? sum : Tensor());
    copy(d, sum);
}

}  // namespace

void matmul_fp8(Tensor d, const Quantised& a, const Quantised& b, const Fp8Product& product,
                const Tensor& addend) {
    const auto [M, N, K] = fp8_sizes(d, a, b, product, addend);
    OpSpan span("matmul_fp8", 2.0 * double(M) * double(N) * double(K),
                double(d.bytes()) * (addend ? 2 : 1) + bytes_in(a) + bytes_in(b));
    if (M == 0 || N == 0) return;
    if (K == 0) {  // an empty sum
        if (!addend) device_zero(d.data(), d.bytes());
        return;
    }
    check(M % 16 == 0 && N % 16 == 0 && K % 16 == 0, "matmul_fp8: M, N and K are multiples of 16");
    check(!*fp8_missing(product.a), "matmul_fp8: not on this device (fp8_missing)");
    if (product.a == ScaleGroup::tile)
        by_our_kernel(d, a, b, product.b == ScaleGroup::tile, addend);
    else
        by_cublas(d, a, b,
                  {M, N, K, a.values.dtype(), b.values.dtype(), d.dtype(), product.a, product.fast,
                   bool(addend)},
                  addend);
}

const char* fp8_missing(ScaleGroup group) {
    if (group == ScaleGroup::tile || group == ScaleGroup::block)
        return hopper() ? "" : "a Hopper GPU (H100, H200), for scales of tiles and blocks";
    compute_stream();  // selects the device
    int device = 0, major = 0, minor = 0;
    cuda_check(cudaGetDevice(&device));
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    return 10 * major + minor >= 89 ? "" : "a GPU since Ada or Hopper (compute capability 8.9)";
}

}  // namespace ultrascale::ops
