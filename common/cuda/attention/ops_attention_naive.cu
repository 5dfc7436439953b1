// Naive attention: the whole matrix of probabilities is written to memory, and the backward reads
// it.
//
//   P = softmax(Q K^T / sqrt(D))    O = P V
//   dV = P^T dO    dP = dO V^T    dS = P * (dP - rowsum(P * dP))
//   dQ = dS K / sqrt(D)    dK = dS^T Q / sqrt(D)
//
// cuBLAS works directly on (B, T, H, D): a head is a matrix whose rows are H * D elements apart.
// One call multiplies all key heads of a sequence, each with one of its query heads. Scores and dP
// are fp32, in a workspace of one sequence (H, Tq, Tk). FLOPs per pair of query and key, masked or
// not: 4 D forward, 8 D backward. It is memory-bound: in bf16 the forward moves 14 bytes per pair
// (fp32 scores written once and read twice, P written and read), which tiled attention avoids.
#include <cublas_v2.h>

#include "attention.cuh"
#include "core/ops_gpt.h"
#include "cuda/ops_common.cuh"

namespace ultrascale::ops {

namespace {

void cublas_check(cublasStatus_t status,
                  std::source_location at = std::source_location::current()) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw std::runtime_error(std::string(at.file_name()) + ":" + std::to_string(at.line()) +
                             ": cuBLAS: " + cublasGetStatusString(status));
}

cublasHandle_t handle() {
    static const cublasHandle_t handle = [] {
        compute_stream();  // selects the device
        cublasHandle_t h;
        cublas_check(cublasCreate(&h));
        // fp32 stays fp32 (no TF32), and sums of 16-bit products stay fp32 to their end.
        cublas_check(cublasSetMathMode(
            h,
            cublasMath_t(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
        return h;
    }();
    cublas_check(cublasSetStream(handle, cuda_compute()));
    return handle;
}

// A row-major matrix for each key head: its rows are `row` elements apart, and the next key head's
// matrix begins `head` elements further on.
struct Matrices {
    void* data;
    DType dtype;
    int64_t row, head;
    // The matrices of the g-th query head of each key head's group; heads are `size` elements
    // apart.
    Matrices query_head(int64_t g, int64_t size) const {
        return {static_cast<char*>(data) + g * size * dtype_bytes(dtype), dtype, row, head};
    }
};

// c (m, n) = alpha * op(a) * op(b) + beta * c, `heads` times. cuBLAS is column-major, and so sees
// every matrix transposed: it computes c^T = op(b)^T op(a)^T.
void multiply(int64_t heads, int64_t m, int64_t n, int64_t k, float alpha, const Matrices& a,
              Transpose ta, const Matrices& b, Transpose tb, float beta, const Matrices& c) {
    const auto operation = [](Transpose t) {
        return t == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N;
    };
    const auto type = [](const Matrices& x) {
        return x.dtype == DType::fp32   ? CUDA_R_32F
               : x.dtype == DType::bf16 ? CUDA_R_16BF
                                        : CUDA_R_16F;
    };
    check(std::max({m, n, k, a.row, b.row, c.row}) <= INT_MAX,
          "attention_naive: sizes that cuBLAS counts in int");
    cublas_check(cublasGemmStridedBatchedEx(
        handle(), operation(tb), operation(ta), int(n), int(m), int(k), &alpha, b.data, type(b),
        int(b.row), b.head, a.data, type(a), int(a.row), a.head, &beta, c.data, type(c), int(c.row),
        c.head, int(heads), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

// Sequence b of x (B, T, K * group, D); below, a matrix (H, Tq, Tk) of its scores or probabilities.
Matrices sequence(const Tensor& x, int64_t b, int64_t group) {
    const int64_t T = x.size(1), heads = x.size(2), D = x.size(3);
    return {static_cast<char*>(x.data()) + b * T * heads * D * dtype_bytes(x.dtype()), x.dtype(),
            heads * D, group * D};
}
Matrices pairs(const Tensor& x, int64_t b, const AttentionSizes& n) {
    return {static_cast<char*>(x.data()) + b * n.H * n.Tq * n.Tk * dtype_bytes(x.dtype()),
            x.dtype(), n.Tk, n.group() * n.Tq * n.Tk};
}

// ---- softmax: a warp handles a row --------------------------------------------------------------
constexpr int threads = 256;

// probabilities (H, Tq, Tk) of sequence b, zeros where the mask hides the key.
template <class T>
__global__ void __launch_bounds__(threads)
    softmax(T* probabilities, const float* scores, int64_t b, int64_t rows, DeviceMask mask) {
    const int64_t row = (int64_t(blockIdx.x) * threads + threadIdx.x) / 32;
    if (row >= rows) return;  // the whole warp returns
    const int lane = int(threadIdx.x) % 32, Tk = int(mask.Tk);
    const float* s = scores + row * Tk;
    int begin, end;
    mask.range(b, row % mask.Tq, begin, end);
    float highest = -INFINITY, sum = 0;
    for (int j = begin + lane; j < end; j += 32) highest = fmaxf(highest, s[j]);
    highest = warp_max(highest);
    for (int j = begin + lane; j < end; j += 32) sum += expf(s[j] - highest);
    sum = warp_sum(sum);
    const float inverse = sum > 0 ? 1 / sum : 0;
    for (int j = lane; j < Tk; j += 32)
        probabilities[row * Tk + j] =
            from_float<T>(j >= begin && j < end ? expf(s[j] - highest) * inverse : 0.0f);
}

// ds = p * (dp - sum of p * dp); ds may be dp.
template <class T>
__global__ void __launch_bounds__(threads)
    softmax_backward(T* ds, const float* dp, const T* probabilities, int64_t rows, int64_t Tk) {
    const int64_t row = (int64_t(blockIdx.x) * threads + threadIdx.x) / 32;
    if (row >= rows) return;
    const int lane = int(threadIdx.x) % 32;
    ds += row * Tk, dp += row * Tk, probabilities += row * Tk;
    float sum = 0;
    for (int64_t j = lane; j < Tk; j += 32) sum += to_float(probabilities[j]) * dp[j];
    sum = warp_sum(sum);
    for (int64_t j = lane; j < Tk; j += 32)
        ds[j] = from_float<T>(to_float(probabilities[j]) * (dp[j] - sum));
}

template <class T>
__global__ void __launch_bounds__(threads) narrow(T* to, const float* from, int64_t count) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (i < count) to[i] = from_float<T>(from[i]);
}

unsigned blocks_for(int64_t rows) { return unsigned(ceil_div(rows, threads / 32)); }

// dk or dv of sequence b = alpha * the sum of a_g^T b_g over the query heads g that share a key
// head.
void sum_over_group(const Tensor& out, int64_t b, const AttentionSizes& n, float alpha,
                    const Matrices& weights, const Matrices& x) {
    const bool direct =
        n.group() == 1 || out.dtype() == DType::fp32;  // otherwise sum in fp32, round once
    const Tensor wide =
        direct ? Tensor() : Tensor::empty({1, n.Tk, n.K, n.D}, DType::fp32, Memory::workspace);
    const Matrices to = direct ? sequence(out, b, 1) : sequence(wide, 0, 1);
    for (int64_t g = 0; g < n.group(); ++g)
        multiply(n.K, n.Tk, n.D, n.Tq, alpha, weights.query_head(g, n.Tq * n.Tk), Transpose::yes,
                 x.query_head(g, n.D), Transpose::no, g == 0 ? 0 : 1, to);
    if (direct) return;
    const int64_t count = n.Tk * n.k_row();
    with_type(out.dtype(), [&]<class T>(T) {
        LAUNCH(narrow<T>, unsigned(ceil_div(count, threads)), threads, 0)
        (data<T>(out) + b * count, wide.as<float>(), count);
    });
}

// ---- dropout ------------------------------------------------------------------------------------

// Of a tensor (B, H, Tq, Tk), the part of sequence b.
Tensor of_sequence(const Tensor& x, int64_t b, const AttentionSizes& n) {
    return x.view({n.B, n.H * n.Tq * n.Tk}).slice(b, b + 1);
}
uint64_t first_number(const ProbabilityDropout& dropout, int64_t b) {
    return dropout.first + uint64_t(b) * dropout.per_sequence;
}

// Sequence b's probabilities after dropout, (1, H Tq Tk).
Tensor drop(const ProbabilityDropout* dropout, const Tensor& probabilities, int64_t b,
            const AttentionSizes& n) {
    const Tensor p = of_sequence(probabilities, b, n);
    if (!dropout) return p;
    if (!dropout->mask) {
        const Tensor dropped = Tensor::empty(p.shape(), p.dtype(), Memory::workspace);
        ops::dropout(dropped, p, dropout->p, dropout->random, first_number(*dropout, b));
        return dropped;
    }
    const Tensor mask = of_sequence(dropout->mask, b, n),
                 dropped = of_sequence(dropout->dropped, b, n);
    dropout_mask(mask, dropout->p, dropout->random, first_number(*dropout, b));
    dropout_by_mask(dropped, mask, p, dropout->p);
    return dropped;
}
// The same in backward, which finds what forward kept.
Tensor dropped_again(const ProbabilityDropout* dropout, const Tensor& probabilities, int64_t b,
                     const AttentionSizes& n) {
    return dropout && dropout->dropped ? of_sequence(dropout->dropped, b, n)
                                       : drop(dropout, probabilities, b, n);
}

// dp (1, H, Tq, Tk), the gradient of what dropout returned, becomes that of the probabilities.
void drop_gradient(const ProbabilityDropout* dropout, const Tensor& dp, int64_t b,
                   const AttentionSizes& n) {
    if (!dropout) return;
    if (dropout->mask)
        dropout_by_mask(dp, of_sequence(dropout->mask, b, n), dp, dropout->p);
    else
        ops::dropout(dp, dp, dropout->p, dropout->random, first_number(*dropout, b));
}

}  // namespace

void attention_naive_forward(Tensor o, Tensor probabilities, const Tensor& q, const Tensor& k,
                             const Tensor& v, const AttentionMask& mask,
                             const ProbabilityDropout* dropout) {
    const AttentionSizes n = attention_sizes(q, k, v);
    check(o.shape() == q.shape(), "attention_naive_forward: o is (B, Tq, H, D)");
    check(probabilities.numel() == n.B * n.H * n.Tq * n.Tk,
          "attention_naive_forward: probabilities are (B, H, Tq, Tk)");
    OpSpan span("attention_naive_forward", 4.0 * double(n.B * n.H * n.Tq) * double(n.Tk * n.D),
                bytes_of(o, q, k, v, probabilities));
    if (probabilities.numel() == 0) return device_zero(o.data(), o.bytes());
    const AttentionMask in_keys = counted_in_keys(mask);
    const DeviceMask visible = device_mask(in_keys, n);
    const Tensor scores = Tensor::empty({n.H, n.Tq, n.Tk}, DType::fp32, Memory::workspace);
    for (int64_t b = 0; b < n.B; ++b) {
        const Matrices s = pairs(scores, 0, n);
        const Matrices qs = sequence(q, b, n.group()), ks = sequence(k, b, 1),
                       vs = sequence(v, b, 1), os = sequence(o, b, n.group());
        for (int64_t g = 0; g < n.group(); ++g)
            multiply(n.K, n.Tq, n.Tk, n.D, n.scale(), qs.query_head(g, n.D), Transpose::no, ks,
                     Transpose::yes, 0, s.query_head(g, n.Tq * n.Tk));
        with_type(q.dtype(), [&]<class T>(T) {
            LAUNCH(softmax<T>, blocks_for(n.H * n.Tq), threads, 0)
            (data<T>(probabilities) + b * scores.numel(), scores.as<float>(), b, n.H * n.Tq,
             visible);
        });
        const Tensor dropped = drop(dropout, probabilities, b, n);
        const Matrices p = pairs(dropped, 0, n);
        for (int64_t g = 0; g < n.group(); ++g)
            multiply(n.K, n.Tq, n.D, n.Tk, 1, p.query_head(g, n.Tq * n.Tk), Transpose::no, vs,
                     Transpose::no, 0, os.query_head(g, n.D));
    }
}

void attention_naive_backward(Tensor dq, Tensor dk, Tensor dv, const Tensor& dout, const Tensor& q,
                              const Tensor& k, const Tensor& v, const Tensor& probabilities,
                              const ProbabilityDropout* dropout) {
    const AttentionSizes n = attention_sizes(q, k, v);
    check(dout.shape() == q.shape() && dq.shape() == q.shape(),
          "attention_naive_backward: dout, dq are (B, Tq, H, D)");
    check(dk.shape() == k.shape() && dv.shape() == k.shape(),
          "attention_naive_backward: dk, dv are (B, Tk, K, D)");
    check(probabilities.numel() == n.B * n.H * n.Tq * n.Tk,
          "attention_naive_backward: probabilities are (B, H, Tq, Tk)");
    OpSpan span("attention_naive_backward", 8.0 * double(n.B * n.H * n.Tq) * double(n.Tk * n.D),
                bytes_of(dq, dk, dv, dout, q, k, v, probabilities));
    if (probabilities.numel() == 0) {
        for (const Tensor& x : {dq, dk, dv}) device_zero(x.data(), x.bytes());
        return;
    }
    const Tensor dp = Tensor::empty({n.H, n.Tq, n.Tk}, DType::fp32, Memory::workspace);
    const Tensor ds =
        q.dtype() == DType::fp32 ? dp : Tensor::empty(dp.shape(), q.dtype(), Memory::workspace);
    for (int64_t b = 0; b < n.B; ++b) {
        const Matrices dps = pairs(dp, 0, n), dss = pairs(ds, 0, n);
        const Matrices qs = sequence(q, b, n.group()), douts = sequence(dout, b, n.group()),
                       dqs = sequence(dq, b, n.group());
        const Matrices ks = sequence(k, b, 1), vs = sequence(v, b, 1);
        for (int64_t g = 0; g < n.group(); ++g)
            multiply(n.K, n.Tq, n.Tk, n.D, 1, douts.query_head(g, n.D), Transpose::no, vs,
                     Transpose::yes, 0, dps.query_head(g, n.Tq * n.Tk));
        drop_gradient(dropout, dp, b, n);
        with_type(q.dtype(), [&]<class T>(T) {
            LAUNCH(softmax_backward<T>, blocks_for(n.H * n.Tq), threads, 0)
            (data<T>(ds), dp.as<float>(), data<T>(probabilities) + b * dp.numel(), n.H * n.Tq,
             n.Tk);
        });
        for (int64_t g = 0; g < n.group(); ++g)
            multiply(n.K, n.Tq, n.D, n.Tk, n.scale(), dss.query_head(g, n.Tq * n.Tk), Transpose::no,
                     ks, Transpose::no, 0, dqs.query_head(g, n.D));
        sum_over_group(dk, b, n, n.scale(), dss, qs);
        const Tensor dropped = dropped_again(dropout, probabilities, b, n);
        sum_over_group(dv, b, n, 1, pairs(dropped, 0, n), douts);
    }
}

}  // namespace ultrascale::ops
