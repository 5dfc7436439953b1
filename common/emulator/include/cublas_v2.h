// Stands in for cuBLAS where kernels run on the CPU: the only product that ops_attention_naive.cu
// uses, written as three loops.
#pragma once

#include "cuda_bf16.h"
#include "cuda_fp16.h"

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cudaDataType_t { CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F };
enum cublasMath_t {
    CUBLAS_DEFAULT_MATH = 0,
    CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
};
enum cublasComputeType_t { CUBLAS_COMPUTE_32F };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT };
using cudaDataType = cudaDataType_t;
using cublasHandle_t = void*;
inline const char* cublasGetStatusString(cublasStatus_t) { return ""; }
inline cublasStatus_t cublasCreate(cublasHandle_t* handle) {
    return *handle = nullptr, CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) {
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) {
    return CUBLAS_STATUS_SUCCESS;
}

// c (m, n) = alpha op(a) op(b) + beta c for each of `count` matrices, column-major.
inline cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t ta,
                                                 cublasOperation_t tb, int m, int n, int k,
                                                 const void* alpha, const void* a,
                                                 cudaDataType_t type_a, int lda, long long stride_a,
                                                 const void* b, cudaDataType_t type_b, int ldb,
                                                 long long stride_b, const void* beta, void* c,
                                                 cudaDataType_t type_c, int ldc, long long stride_c,
                                                 int count, cublasComputeType_t, cublasGemmAlgo_t) {
    const auto read = [](const void* x, cudaDataType_t type, long long i) {
        return type == CUDA_R_32F    ? static_cast<const float*>(x)[i]
               : type == CUDA_R_16BF ? __bfloat162float(static_cast<const __nv_bfloat16*>(x)[i])
                                     : __half2float(static_cast<const __half*>(x)[i]);
    };
    const float factor = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
    for (long long batch = 0; batch < count; ++batch)
        for (long long col = 0; col < n; ++col)
            for (long long row = 0; row < m; ++row) {
                float sum = 0;
                for (long long i = 0; i < k; ++i)
                    sum += read(a, type_a,
                                batch * stride_a +
                                    (ta == CUBLAS_OP_N ? row + i * lda : i + row * lda)) *
                           read(b, type_b,
                                batch * stride_b +
                                    (tb == CUBLAS_OP_N ? i + col * ldb : col + i * ldb));
                const long long at = batch * stride_c + row + col * ldc;
                const float result = factor * sum + (keep != 0 ? keep * read(c, type_c, at) : 0.0f);
                if (type_c == CUDA_R_32F)
                    static_cast<float*>(c)[at] = result;
                else if (type_c == CUDA_R_16BF)
                    static_cast<__nv_bfloat16*>(c)[at] = __float2bfloat16_rn(result);
                else
                    static_cast<__half*>(c)[at] = __float2half_rn(result);
            }
    return CUBLAS_STATUS_SUCCESS;
}
