// GELU, a bias's gradient, and dropout with masks. All of them are memory-bound.
#include "column_sums.cuh"
#include "core/ops_gpt.h"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;

// ---- GELU ---------------------------------------------------------------------------------------

// GELU(x) = x s with s = sigmoid(2 u) = (1 + tanh u) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3).
constexpr float twice_root = 1.5957691216057308f, cubic = 0.044715f;
__device__ float gate(float x) {
    return __fdividef(1.0f, 1.0f + expf(-twice_root * (x + cubic * x * x * x)));
}

// Each thread has a pack. A last pack that is not complete is handled with n = 1.
template <int n, class T>
__global__ void __launch_bounds__(threads) forward_kernel(T* out, const T* x, int64_t packs) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (i >= packs) return;
    float v[n];
    to_floats(v, load<n>(x + i * n));
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] *= gate(v[j]);
    store(out + i * n, from_floats<T>(v));
}

template <int n, class T>
__global__ void __launch_bounds__(threads)
    backward_kernel(T* dx, T* dout, const T* x, int64_t packs) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (i >= packs) return;
    float v[n], d[n];
    to_floats(v, load<n>(x + i * n)), to_floats(d, load<n>(dout + i * n));
#pragma unroll
    for (int j = 0; j < n; ++j) {
        const float s = gate(v[j]), y = v[j] * s;
        d[j] *= s + y * (1.0f - s) * twice_root * (1.0f + 3.0f * cubic * v[j] * v[j]);
        v[j] = y;
    }
    store(dx + i * n, from_floats<T>(d)), store(dout + i * n, from_floats<T>(v));
}

// Calls start(n, packs, blocks): with full packs if the elements of T at these addresses allow it.
template <class T, class Start>
void with_packs(int64_t elements, std::initializer_list<const void*> addresses,
                const Start& start) {
    if (elements == 0) return;
    const auto blocks = [](int64_t packs) { return unsigned(ceil_div(packs, threads)); };
    constexpr int n = pack_size<T>;
    if (packs_fit<T>(elements, addresses))
        start(std::integral_constant<int, n>(), elements / n, blocks(elements / n));
    else
        start(std::integral_constant<int, 1>(), elements, blocks(elements));
}

// ---- column sums --------------------------------------------------------------------------------

// A block has 32 packs of columns and every gridDim.y-th group of 8 rows; partial (gridDim.y,
// columns) gets its sums.
template <int n, class T>
__global__ void __launch_bounds__(threads)
    sum_rows(float* partial, const T* dy, int64_t N, int64_t columns) {
    alignas(16) __shared__ float sums[8][32 * n];
    const int64_t column = (int64_t(blockIdx.x) * 32 + threadIdx.x) * n;
    float sum[n] = {};
    if (column < columns)
#pragma unroll 4
        for (int64_t row = blockIdx.y * 8 + threadIdx.y; row < N; row += gridDim.y * 8) {
            float d[n];
            to_floats(d, load<n>(dy + row * columns + column));
#pragma unroll
            for (int j = 0; j < n; ++j) sum[j] += d[j];
        }
    store_floats<n>(&sums[threadIdx.y][threadIdx.x * n], sum);
    __syncthreads();
    for (int i = threadIdx.y * 32 + int(threadIdx.x); i < 32 * n; i += threads) {
        const int64_t at = int64_t(blockIdx.x) * 32 * n + i;
        float total = 0;
        for (int r = 0; r < 8; ++r) total += sums[r][i];
        if (at < columns) partial[blockIdx.y * columns + at] = total;
    }
}

// dbias (columns) = the sum of partial's rows (+ dbias).
template <class W>
__global__ void __launch_bounds__(1024)
    set_sums(W* dbias, const float* partial, int blocks, int64_t columns, bool adds) {
    const int64_t column = int64_t(blockIdx.x) * 32 + threadIdx.x;
    const float sum = column_sum(partial, blocks, columns, column);
    if (threadIdx.y == 0 && column < columns)
        dbias[column] = from_float<W>((adds ? to_float(dbias[column]) : 0.0f) + sum);
}

// ---- dropout with masks -------------------------------------------------------------------------

// Each thread calls Philox once, for up to four elements.
__global__ void __launch_bounds__(threads)
    draw(__nv_fp8_e4m3* mask, float p, Random random, uint64_t first, int64_t n) {
    const uint64_t block = first / 4 + uint64_t(blockIdx.x) * threads + threadIdx.x;
    const int64_t begin = int64_t(4 * block - first);  // may lie before the beginning
    if (begin >= n) return;
    const std::array<float, 4> u = random.uniforms(block);
    for (int j = 0; j < 4; ++j)
        if (begin + j >= 0 && begin + j < n)
            mask[begin + j] = from_float<__nv_fp8_e4m3>(u[j] > p ? 1.0f : 0.0f);
}

template <class T>
__global__ void __launch_bounds__(threads)
    apply(T* y, const __nv_fp8_e4m3* mask, const T* x, const T* addend, float factor, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (i >= n) return;
    y[i] = from_float<T>(to_float(mask[i]) * factor * to_float(x[i]) +
                         (addend ? to_float(addend[i]) : 0.0f));
}

}  // namespace

void gelu_forward(Tensor out, const Tensor& x) {
    const int64_t elements = x.numel();
    check(out.numel() == elements, "gelu_forward: x and out are of one size");
    OpSpan span("gelu_forward", 8.0 * double(elements), bytes_of(out, x));
    with_type(x.dtype(), [&]<class T>(T) {
        with_packs<T>(
            elements, {out.data(), x.data()}, [&](auto n, int64_t packs, unsigned blocks) {
                LAUNCH((forward_kernel<n, T>), blocks, threads, 0)(data<T>(out), data<T>(x), packs);
            });
    });
}

void gelu_backward(Tensor dx, Tensor dout, const Tensor& x) {
    const int64_t elements = x.numel();
    check(dx.numel() == elements && dout.numel() == elements,
          "gelu_backward: x, dx and dout are of one size");
    OpSpan span("gelu_backward", 16.0 * double(elements), bytes_of(dx, dout, dout, x));
    with_type(x.dtype(), [&]<class T>(T) {
        with_packs<T>(elements, {dx.data(), dout.data(), x.data()},
                      [&](auto n, int64_t packs, unsigned blocks) {
                          LAUNCH((backward_kernel<n, T>), blocks, threads, 0)
                          (data<T>(dx), data<T>(dout), data<T>(x), packs);
                      });
    });
}

void column_sums(Tensor dbias, const Tensor& dy, const Tensor& addend) {
    const int64_t N = dy.rows(), columns = dy.cols();
    check(dbias.numel() == columns, "column_sums: dy is (N, n), dbias (n)");
    check(!addend || addend.data() == dbias.data(), "column_sums: adds to dbias or to nothing");
    OpSpan span("column_sums", double(N * columns), bytes_of(dy, dbias));
    with_type(dy.dtype(), [&]<class T>(T) {
        const bool fits = packs_fit<T>(columns, {dy.data()});
        constexpr int n = pack_size<T>;
        const int64_t across = ceil_div(columns, 32 * (fits ? n : 1));
        const int64_t down =
            std::clamp<int64_t>(4 * multiprocessors() / across, 1, ceil_div(N + 1, 32));
        const Tensor partial = Tensor::empty({down, columns}, DType::fp32, Memory::workspace);
        const auto start = [&](auto kernel) {
            LAUNCH(kernel, dim3(unsigned(across), unsigned(down)), dim3(32, 8), 0)
            (partial.as<float>(), data<T>(dy), N, columns);
        };
        fits ? start(sum_rows<n, T>) : start(sum_rows<1, T>);
        with_type(dbias.dtype(), [&]<class W>(W) {
            LAUNCH(set_sums<W>, unsigned(ceil_div(columns, 32)), dim3(32, 32), 0)
            (data<W>(dbias), partial.as<float>(), int(down), columns, bool(addend));
        });
    });
}

void dropout_mask(Tensor mask, float p, const Random& random, uint64_t first) {
    const int64_t n = mask.numel();
    check(mask.dtype() == DType::e4m3, "dropout_mask: a mask is e4m3");
    OpSpan span("dropout_mask", double(n), bytes_of(mask));
    if (n == 0) return;
    const auto blocks = int64_t((first + uint64_t(n) - 1) / 4 - first / 4 + 1);
    LAUNCH(draw, unsigned(ceil_div(blocks, threads)), threads, 0)
    (data<__nv_fp8_e4m3>(mask), p, random, first, n);
}

void dropout_by_mask(Tensor y, const Tensor& mask, const Tensor& x, float p, const Tensor& addend) {
    const int64_t n = x.numel();
    check(y.numel() == n && mask.numel() == n && (!addend || addend.numel() == n),
          "dropout_by_mask: x, y, mask and the addend are of one size");
    OpSpan span("dropout_by_mask", 2.0 * double(n),
                bytes_of(y, x, mask) + (addend ? bytes_of(addend) : 0));
    with_type(x.dtype(), [&]<class T>(T) {
        LAUNCH(apply<T>, unsigned(ceil_div(n, threads)), threads, 0)
        (data<T>(y), data<__nv_fp8_e4m3>(mask), data<T>(x), addend ? data<T>(addend) : nullptr,
         1 / (1 - p), n);
    });
}

}  // namespace ultrascale::ops
