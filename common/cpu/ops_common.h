// Shared by the CPU operations: a vectorisable exp, and the call to OpenBLAS. Private to
// common/cpu/ops_*.cpp.
//
// Loops are plain and marked `omp simd`, so that the compiler vectorises them without -ffast-math;
// they run on all threads only if there is enough work. No sum depends on the number of threads:
// work is split into blocks whose sizes depend on the shapes only, and the blocks' sums are added
// in order.
#pragma once

#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/ops_host.h"
#include "core/trace.h"

namespace ultrascale::ops {

template <class... Tensors>
double bytes_of(const Tensors&... tensors) {
    return (0.0 + ... + double(tensors.bytes()));
}

// e^x within 2 units in the last place: x = n ln 2 + r with |r| <= ln(2)/2, a polynomial for e^r
// (Cephes' expf), and 2^n assembled from its bits. The result is 0 below -87.3, where it would be
// denormal, and e^88 above 88.
inline float exp_fast(float x) {
    x = 88.0f < x ? 88.0f : x;
    const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
    float shifted = x * 1.44269504f + shift, n = shifted - shift;
    float r =
        x - n * 0.693359375f + n * 2.12194440e-4f;  // ln 2 in two parts: n times the first is exact
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    float power =
        std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u);  // 2^n
    return x < -87.3f ? 0.0f : p * power;
}

// A row's largest element (-inf if all are), and the sum of exp(x - largest). It is added in
// blocks, because 128,256 floats added one by one would lose their last digits.
struct SoftmaxSums {
    float highest, sum;
};
template <class T>
SoftmaxSums softmax_sums(const T* x, int64_t n) {
    float highest = -INFINITY;
#pragma omp simd reduction(max : highest)
    for (int64_t i = 0; i < n; ++i) highest = float(x[i]) > highest ? float(x[i]) : highest;
    const float shift = highest == -INFINITY ? 0 : highest;
    double sum = 0;
    for (int64_t begin = 0; begin < n; begin += 1024) {
        float part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t i = begin; i < std::min(begin + 1024, n); ++i)
            part += exp_fast(float(x[i]) - shift);
        sum += double(part);
    }
    return {highest, float(sum)};
}

// c (m, n) = alpha * op(a) * op(b) + beta * c, all row-major; ld: elements from one stored row to
// the next. Uses all threads, or only the calling one inside a parallel region.
inline void sgemm(Transpose ta, Transpose tb, int64_t m, int64_t n, int64_t k, float alpha,
                  const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
                  int64_t ldc) {
    auto flag = [](Transpose t) { return t == Transpose::yes ? CblasTrans : CblasNoTrans; };
    cblas_sgemm(CblasRowMajor, flag(ta), flag(tb), blasint(m), blasint(n), blasint(k), alpha, a,
                blasint(lda), b, blasint(ldb), beta, c, blasint(ldc));
}

// copy() without a span of its own, for use in other operations.
void convert(Tensor to, const Tensor& from);

// x in fp32: x itself, or a copy in workspace memory.
inline Tensor widened(const Tensor& x) {
    if (x.dtype() == DType::fp32) return x;
    Tensor wide = Tensor::empty(x.shape(), DType::fp32, Memory::workspace);
    convert(wide, x);
    return wide;
}
// The fp32 tensor in which to compute x: x itself, or workspace memory that the caller converts to
// x at the end.
inline Tensor widened_output(const Tensor& x) {
    return x.dtype() == DType::fp32 ? x : Tensor::empty(x.shape(), DType::fp32, Memory::workspace);
}

}  // namespace ultrascale::ops
