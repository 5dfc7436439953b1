// Matrix products by cuBLASLt. Our tensors are row-major and cuBLAS's are column-major. A row-major
// matrix read by columns is its transpose, so d = a b is computed as d^T = b^T a^T, and no data is
// moved.
//
// Which of cuBLAS's kernels is fastest depends on the shape. A large product's candidates are timed
// at its first use, and the winner is kept for the rest of the run. Small products use cuBLAS's
// first proposal, so two runs of a small model give the same bits; ULTRASCALE_GEMM_TUNING=0 does
// that for all sizes.
#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "core/ops.h"
#include "core/trace.h"
#include "cublas.h"
#include "padded.h"

namespace ultrascale::ops {

namespace {

cudaDataType_t cuda_type(DType dtype) {
    check(dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16,
          "matmul: fp32, bf16 and fp16 only");
    return dtype == DType::fp32 ? CUDA_R_32F : dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

// Products with the same key share a cuBLAS kernel.
struct Product {
    int64_t M, N, K;
    bool ta, tb;
    DType in, out;
    float beta;  // 1: adds c
    bool bias;
    std::array<int, 4> alignment;  // of a, b, c, d in bytes, up to 16
    auto key() const { return std::tuple(M, N, K, ta, tb, in, out, beta, bias, alignment); }
    bool operator<(const Product& other) const { return key() < other.key(); }
};

bool tuned(const Product& product) {
    return gemm_tuning() && 2.0 * double(product.M) * double(product.N) * double(product.K) >= 1e10;
}

int alignment_of(const void* address) {
    int alignment = 16;
    while (reinterpret_cast<uintptr_t>(address) % uintptr_t(alignment) != 0) alignment /= 2;
    return alignment;
}

// One product, ready to run: cuBLAS's descriptors and the chosen kernel. It lives as long as the
// program.
class Plan {
public:
    explicit Plan(const Product& s) : beta_(s.beta) {
        cublas_check(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        // cuBLAS's first operand is our b, its second our a.
        const cublasOperation_t first = s.tb ? CUBLAS_OP_T : CUBLAS_OP_N,
                                second = s.ta ? CUBLAS_OP_T : CUBLAS_OP_N;
        cublas_check(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                                    sizeof first));
        cublas_check(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSB,
                                                    &second, sizeof second));
        if (s.bias) {
            const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
            cublas_check(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                        &epilogue, sizeof epilogue));
        }
        const auto layout = [](DType dtype, int64_t rows,
                               int64_t cols) {  // of a row-major matrix, read by columns
            cublasLtMatrixLayout_t l;
            cublas_check(cublasLtMatrixLayoutCreate(&l, cuda_type(dtype), uint64_t(cols),
                                                    uint64_t(rows), cols));
            return l;
        };
        b_ = s.tb ? layout(s.in, s.N, s.K) : layout(s.in, s.K, s.N);
        a_ = s.ta ? layout(s.in, s.K, s.M) : layout(s.in, s.M, s.K);
        d_ = layout(s.out, s.M, s.N);

        const cublasLtMatmulPreference_t preference = cublas_preference();
        const auto align = [&](cublasLtMatmulPreferenceAttributes_t attribute, int alignment) {
            const uint32_t bytes = uint32_t(alignment);
            cublas_check(
                cublasLtMatmulPreferenceSetAttribute(preference, attribute, &bytes, sizeof bytes));
        };
        align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, s.alignment[1]);
        align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s.alignment[0]);
        align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s.alignment[2]);
        align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s.alignment[3]);
        candidates_.resize(tuned(s) ? 24 : 1);
        int found = 0;
        cublas_check(cublasLtMatmulAlgoGetHeuristic(cublas_handle(), operation_, b_, a_, d_, d_,
                                                    preference, int(candidates_.size()),
                                                    candidates_.data(), &found));
        cublas_check(cublasLtMatmulPreferenceDestroy(preference));
        check(found > 0, "matmul: cuBLAS has no kernel for this product");
        candidates_.resize(size_t(found));
    }

    // The bias of the products that follow. (Its rows are what cuBLAS sees as columns.)
    void set_bias(const void* bias) const {
        cublas_check(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                    &bias, sizeof bias));
    }

    void run(const void* a, const void* b, const void* c, void* d) const {
        run(candidates_.front(), a, b, c, d);
    }

    // Puts the fastest candidate first. Afterwards d holds the product only if beta is 0.
    void tune(const void* a, const void* b, const void* c, void* d) {
        std::swap(candidates_[0], candidates_[fastest_of(candidates_, [&](const auto& kernel) {
                      run(kernel, a, b, c, d);
                  })]);
    }

private:
    void run(const cublasLtMatmulHeuristicResult_t& kernel, const void* a, const void* b,
             const void* c, void* d) const {
        const Tensor workspace = cublas_workspace(kernel);
        const float one = 1;
        cublas_check(cublasLtMatmul(cublas_handle(), operation_, &one, b, b_, a, a_, &beta_, c, d_,
                                    d, d_, &kernel.algo, workspace.data(), kernel.workspaceSize,
                                    cuda_compute()));
    }

    float beta_;
    cublasLtMatmulDesc_t operation_ = nullptr;
    cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
    std::vector<cublasLtMatmulHeuristicResult_t> candidates_;  // the chosen one first
};

Plan& plan_for(const Product& shape, const Tensor& a, const Tensor& b, const void* c,
               const Tensor& d, const Tensor& bias) {
    static auto& plans = *new std::map<Product, Plan>;
    auto [it, is_new] = plans.try_emplace(shape, shape);
    if (bias) it->second.set_bias(bias.data());
    if (!is_new) return it->second;
    if (tuned(shape)) {
        if (c == d.data()) {  // d's values are still needed
            Tensor scratch = Tensor::zeros(d.shape(), d.dtype(), Memory::workspace);
            it->second.tune(a.data(), b.data(), scratch.data(), scratch.data());
        } else {
            it->second.tune(a.data(), b.data(), c, d.data());
        }
    }
    return it->second;
}

struct Sizes {
    int64_t M, N, K;
};

// d = op(a) op(b) + c + bias; c, if there is one, is laid out as d.
void multiply(const Tensor& d, const Tensor& a, Transpose ta, const Tensor& b, Transpose tb,
              const void* c, const Tensor& bias, Sizes sizes) {
    const void* const read = c ? c : d.data();
    const Product shape = {.M = sizes.M,
                           .N = sizes.N,
                           .K = sizes.K,
                           .ta = ta == Transpose::yes,
                           .tb = tb == Transpose::yes,
                           .in = a.dtype(),
                           .out = d.dtype(),
                           .beta = c ? 1.0f : 0.0f,
                           .bias = bool(bias),
                           .alignment = {alignment_of(a.data()), alignment_of(b.data()),
                                         alignment_of(read), alignment_of(d.data())}};
    plan_for(shape, a, b, c, d, bias).run(a.data(), b.data(), read, d.data());
}

// The same with copies of the matrices in which each size is a multiple of 8 (padded.h). Zeros
// that are added to K change no sum.
void multiply_padded(const Tensor& d, const Tensor& a, Transpose ta, const Tensor& b, Transpose tb,
                     const Tensor& addend, Sizes sizes) {
    const Padded a_copy(a), b_copy(b), d_copy(d);
    a_copy.take(), b_copy.take();
    if (addend) {  // first into d, as that has its dtype
        if (addend.data() != d.data()) copy(d, addend);
        d_copy.take();
    }
    multiply(d_copy.tensor, a_copy.tensor, ta, b_copy.tensor, tb,
             addend ? d_copy.tensor.data() : nullptr, {},
             {padded(sizes.M), padded(sizes.N), padded(sizes.K)});
    d_copy.give_back();
}

}  // namespace

void matmul(Tensor d, const Tensor& a, Transpose ta, const Tensor& b, Transpose tb,
            const Tensor& addend, const Tensor& bias) {
    const bool at = ta == Transpose::yes, bt = tb == Transpose::yes;
    const int64_t M = at ? a.cols() : a.rows(), K = at ? a.rows() : a.cols(),
                  N = bt ? b.rows() : b.cols();
    check((bt ? b.cols() : b.rows()) == K, "matmul: the inner sizes of a and b differ");
    check(d.numel() == M * N && (M == 0 || d.cols() == N), "matmul: d is (M, N)");
    check(!addend || addend.numel() == M * N, "matmul: addend is (M, N)");
    check(a.dtype() == b.dtype(), "matmul: a and b share their dtype");
    check(!bias || (bias.numel() == N && bias.dtype() == d.dtype()),
          "matmul: bias is (N), of d's dtype");
    const double bytes = double(d.bytes() + a.bytes() + b.bytes()) +
                         (addend ? double(addend.bytes()) : 0) + (bias ? double(bias.bytes()) : 0);
    OpSpan span("matmul", 2.0 * double(M) * double(N) * double(K), bytes);
    if (M == 0 || N == 0) return;
    if (worth_padding(M, N, K, a.dtype()) && !bias)
        return multiply_padded(d, a, ta, b, tb, addend, {M, N, K});
    const void* c = addend ? addend.data() : d.data();
    if (addend && (addend.dtype() != d.dtype() || K == 0)) {
        if (addend.data() != d.data()) copy(d, addend);
        c = d.data();
    }
    if (K == 0) {  // an empty sum
        check(!bias, "matmul: an empty sum has no bias");
        if (!addend) device_zero(d.data(), d.bytes());
        return;
    }
    multiply(d, a, ta, b, tb, addend ? c : nullptr, bias, {M, N, K});
}

}  // namespace ultrascale::ops
