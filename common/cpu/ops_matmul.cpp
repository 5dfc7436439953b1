// Matrix product with OpenBLAS, which multiplies fp32 only. Operands of 16 bits are therefore
// widened into workspace memory: b as a whole, a and d in panels of rows.
#include "ops_common.h"

namespace ultrascale::ops {

namespace {

// out (panel) = rows [begin, end) of op(a) (M, K), in stored form: rows of a (M, K), or columns
// [begin, end) of a (K, M).
template <class T>
void widen_panel(float* out, const T* a, Transpose ta, int64_t M, int64_t K, int64_t begin,
                 int64_t end) {
    const bool transposed = ta == Transpose::yes;
    const int64_t rows = transposed ? K : end - begin, cols = transposed ? end - begin : K;
    const T* first = transposed ? a + begin : a + begin * K;
    const int64_t stride = transposed ? M : K;
#pragma omp parallel for if (rows * cols > parallel_threshold)
    for (int64_t r = 0; r < rows; ++r)
#pragma omp simd
        for (int64_t c = 0; c < cols; ++c) out[r * cols + c] = float(first[r * stride + c]);
}

void add_to_rows(float* y, const float* bias, int64_t rows, int64_t cols) {
#pragma omp parallel for if (rows * cols > parallel_threshold)
    for (int64_t r = 0; r < rows; ++r)
#pragma omp simd
        for (int64_t c = 0; c < cols; ++c) y[r * cols + c] += bias[c];
}

void matmul_16_bits(const Tensor& d, const Tensor& a, Transpose ta, const Tensor& b, Transpose tb,
                    const Tensor& addend, const Tensor& bias, int64_t M, int64_t N, int64_t K) {
    const int64_t panel = std::min<int64_t>(M, 2048);
    const Tensor wide_b = widened(b), wide_bias = bias ? widened(bias) : bias;
    Tensor wide_a = Tensor::empty({panel, K}, DType::fp32, Memory::workspace);
    Tensor wide_d;
    if (d.dtype() != DType::fp32)
        wide_d = Tensor::empty({panel, N}, DType::fp32, Memory::workspace);
    Tensor d_rows = d.view({M, N}), addend_rows = addend ? addend.view({M, N}) : addend;
    for (int64_t begin = 0; begin < M; begin += panel) {
        const int64_t end = std::min(begin + panel, M);
        Tensor rows = d_rows.slice(begin, end), sum = wide_d ? wide_d.slice(0, end - begin) : rows;
        if (addend && addend_rows.slice(begin, end).data() != sum.data())
            convert(sum, addend_rows.slice(begin, end));
        with_type(a.dtype(), [&]<class T>(T) {
            widen_panel(wide_a.as<float>(), a.as<T>(), ta, M, K, begin, end);
        });
        sgemm(ta, tb, end - begin, N, K, 1, wide_a.as<float>(),
              ta == Transpose::yes ? end - begin : K, wide_b.as<float>(),
              tb == Transpose::yes ? K : N, addend ? 1 : 0, sum.as<float>(), N);
        if (wide_bias) add_to_rows(sum.as<float>(), wide_bias.as<float>(), end - begin, N);
        if (wide_d) convert(rows, sum);
    }
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
    OpSpan span("matmul", 2.0 * double(M) * double(N) * double(K),
                bytes_of(d, a, b) + (addend ? bytes_of(addend) : 0) + (bias ? bytes_of(bias) : 0));
    const bool in_place = addend && addend.data() == d.data();
    if (M == 0 || N == 0) return;
    if (K == 0) {  // an empty sum
        check(!bias, "matmul: an empty sum has no bias");
        if (!addend)
            device_zero(d.data(), d.bytes());
        else if (!in_place)
            convert(d, addend);
    } else if (a.dtype() != DType::fp32) {
        matmul_16_bits(d, a, ta, b, tb, addend, bias, M, N, K);
    } else {
        if (addend && !in_place) convert(d, addend);
        sgemm(ta, tb, M, N, K, 1, a.as<float>(), a.cols(), b.as<float>(), b.cols(), addend ? 1 : 0,
              d.as<float>(), N);
        if (bias) add_to_rows(d.as<float>(), bias.as<float>(), M, N);
    }
}

}  // namespace ultrascale::ops
