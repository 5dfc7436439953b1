// Shared by all code that calls cuBLASLt: error checks, the handle, and the choice among its
// kernels for a product.
#pragma once

#include <cublasLt.h>
#include <fmt/format.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "cuda_common.h"

namespace ultrascale {

// Throws std::runtime_error with cuBLAS's own words unless `status` is CUBLAS_STATUS_SUCCESS.
inline void cublas_check(cublasStatus_t status,
                         std::source_location at = std::source_location::current()) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw std::runtime_error(fmt::format("{}:{}: cuBLAS: {}", at.file_name(), at.line(),
                                         cublasLtGetStatusString(status)));
}

inline cublasLtHandle_t cublas_handle() {
    static const cublasLtHandle_t handle = [] {
        compute_stream();  // selects the device
        cublasLtHandle_t h;
        cublas_check(cublasLtCreate(&h));
        return h;
    }();
    return handle;
}

// Whether large products try several kernels: they do unless ULTRASCALE_GEMM_TUNING=0.
inline bool gemm_tuning() {
    static const bool on = [] {
        const char* text = std::getenv("ULTRASCALE_GEMM_TUNING");
        return !text || std::string(text) != "0";
    }();
    return on;
}

// The preference for cublasLtMatmulAlgoGetHeuristic: kernels with up to 32 MiB of workspace. The
// caller destroys it.
inline cublasLtMatmulPreference_t cublas_preference() {
    cublasLtMatmulPreference_t preference;
    cublas_check(cublasLtMatmulPreferenceCreate(&preference));
    const size_t most = 32 << 20;
    cublas_check(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most));
    return preference;
}

// The workspace that the kernel needs; an empty tensor if it needs none.
inline Tensor cublas_workspace(const cublasLtMatmulHeuristicResult_t& kernel) {
    if (kernel.workspaceSize == 0) return {};
    return Tensor::empty({int64_t(kernel.workspaceSize + 3) / 4}, DType::int32, Memory::workspace);
}

// Times these kernels (at least one) and returns the index of the fastest; run(kernel) launches one
// on the compute stream.
template <class Run>
size_t fastest_of(const std::vector<cublasLtMatmulHeuristicResult_t>& kernels, const Run& run) {
    cudaEvent_t begin, end;
    cuda_check(cudaEventCreate(&begin));
    cuda_check(cudaEventCreate(&end));
    float best = 0;
    size_t winner = 0;
    for (size_t i = 0; i < kernels.size(); ++i) {
        run(kernels[i]);  // not timed: the first run loads the kernel
        cuda_check(cudaEventRecord(begin, cuda_compute()));
        for (int repeat = 0; repeat < 3; ++repeat) run(kernels[i]);
        cuda_check(cudaEventRecord(end, cuda_compute()));
        cuda_check(cudaEventSynchronize(end));
        float ms = 0;
        cuda_check(cudaEventElapsedTime(&ms, begin, end));
        if (i == 0 || ms < best) best = ms, winner = i;
    }
    cuda_check(cudaEventDestroy(begin));
    cuda_check(cudaEventDestroy(end));
    return winner;
}

}  // namespace ultrascale
