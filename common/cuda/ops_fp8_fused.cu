// RMSNorm and SwiGLU whose results leave in 8 bits. In bf16 the norm reads 2 bytes per element and
// writes 1; SwiGLU reads 4 and writes 1. With the scale of the whole tensor, unless it is given,
// the inputs are read once more before that, for the largest magnitude.
//
// A tile of 1 x 128 is in neighbouring lanes of a warp, which find its largest number by shuffles:
// 16 lanes of 8 numbers each (16 bits), or 32 of 4 (fp32). Rows of other sizes and addresses, and
// SwiGLU with a scale for each row, go through quantise_rows (fp8_rows.cuh), where a warp takes a
// tile.
#include "fp8_rows.cuh"
#include "rmsnorm_row.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = row_threads;

// ---- RMSNorm ------------------------------------------------------------------------------------

template <int group, int n, class F, class T>
__global__ void __launch_bounds__(threads)
    norm_kept(const Output<F> out, float* rstd, const T* x, const T* weight, float eps, int h) {
    const int64_t row = out.row(int64_t(blockIdx.x) * blockDim.y + threadIdx.y);
    if (row < 0 || row >= out.N) return;  // the whole group
    Pack<T, n> kept[packs_kept];
    const float r = load_row<group>(kept, x + row * h, eps, h);
    if (threadIdx.x == 0) rstd[row] = r;
    float factor = out.factor_of_tensor();
    const int first = int(threadIdx.x) * n, stride = group * n;
#pragma unroll
    for (int p = 0; p < packs_kept; ++p)
        if (const int i = first + p * stride; i < h)
            normalise(kept[p], r, load<n>(weight + i));
        else
            kept[p] = {};
    const bool tiles = out.of.group == ScaleGroup::tile;
    float m[packs_kept];
    if (tiles || out.needs_amax()) max_magnitudes(m, kept);
    if (out.needs_amax()) {
        float largest = max_magnitude(m);
        if constexpr (group == 32)
            largest = warp_max(largest);
        else
            largest = block_max<group>(largest);
        factor = out.factor_of_row(row, largest, factor);
    }
    if (!out.y) return;
    if (tiles) factor = factor_of_tile<n>(out, m, row, h, first, stride);
    store_packs(out, kept, factor, row, h, first, stride);
}

template <class T>
__global__ void __launch_bounds__(threads)
    norm_statistics(float* rstd, const T* x, float eps, int64_t h) {
    x += blockIdx.x * h;
    float squares = 0;
    for (int64_t i = threadIdx.x; i < h; i += threads) squares += to_float(x[i]) * to_float(x[i]);
    squares = block_sum<threads>(squares);
    if (threadIdx.x == 0) rstd[blockIdx.x] = 1.0f / sqrtf(squares / float(h) + eps);
}

// ---- SwiGLU -------------------------------------------------------------------------------------

__device__ float swiglu(float gate, float up) {
    return gate * __fdividef(1.0f, 1.0f + expf(-gate)) * up;  // as in ops_swiglu.cu
}

// Blocks: (row, part of the row); `unroll` packs a thread, a block's width apart.
template <int n, int unroll, class F, class T>
__global__ void __launch_bounds__(threads)
    swiglu_packs(const Output<F> out, const T* gate_up, int columns) {
    const int64_t row = out.row(blockIdx.x);
    const int first = int(blockIdx.y * unroll * threads + threadIdx.x) * n;
    const T *gate = gate_up + row * 2 * columns, *up = gate + columns;
    Pack<T, n> gates[unroll], ups[unroll];
#pragma unroll
    for (int k = 0; k < unroll; ++k)
        if (const int i = first + k * threads * n; i < columns)
            gates[k] = load<n>(gate + i), ups[k] = load<n>(up + i);
#pragma unroll
    for (int k = 0; k < unroll; ++k) {
        float y[n] = {};
        if (first + k * threads * n < columns) {
            float up_values[n];
            to_floats(y, gates[k]), to_floats(up_values, ups[k]);
#pragma unroll
            for (int j = 0; j < n; ++j) y[j] = swiglu(y[j], up_values[j]);
        }
        gates[k] = from_floats<T>(y);
    }
    const bool tiles = out.of.group == ScaleGroup::tile;
    float m[unroll];
    if (tiles || out.amax) max_magnitudes(m, gates);
    if (out.y) {
        float factor = out.factor_of_tensor();
        if (tiles) factor = factor_of_tile<n>(out, m, row, columns, first, threads * n);
        store_packs(out, gates, factor, row, columns, first, threads * n);
    }
    if (!out.amax) return;
    const float largest = block_max<threads>(max_magnitude(m));
    if (threadIdx.x == 0) out.amax[row * gridDim.y + blockIdx.y] = largest;
}

// ---- any row ------------------------------------------------------------------------------------

template <class T>
struct NormValue {
    using Stored = T;
    const T *x, *weight;
    const float* rstd;
    int64_t h;
    __device__ float operator()(int64_t row, int64_t i) const {
        return to_float(x[row * h + i]) * rstd[row] * to_float(weight[i]);
    }
};
template <class T>
struct SwigluValue {
    using Stored = T;
    const T* gate_up;
    int64_t F;
    __device__ float operator()(int64_t row, int64_t i) const {
        return swiglu(to_float(gate_up[row * 2 * F + i]), to_float(gate_up[row * 2 * F + F + i]));
    }
};

}  // namespace

void rmsnorm_forward_quantised(const Quantised& y, Tensor rstd, const Tensor& x,
                               const Tensor& weight, float eps, const Scaling& scaling,
                               Tensor amax) {
    const FusedSizes sizes = norm_sizes(y, rstd, x, weight, scaling, amax);
    const int64_t N = sizes.N, h = sizes.columns;
    OpSpan span("rmsnorm_forward_quantised", 6.0 * double(N * h),
                bytes_of(rstd, x, weight) + bytes_in(y));
    if (N == 0) return;
    with_type(x.dtype(), [&]<class T>(T) {
        constexpr int n = pack_size<T>, warp_row = 32 * packs_kept * n;
        const bool kept =
            packs_fit<T>(h, {x.data(), weight.data(), y.values.data()}) && h <= 8 * warp_row;
        float* const r = rstd.as<float>();
        if (!kept) LAUNCH(norm_statistics<T>, unsigned(N), threads, 0)(r, data<T>(x), eps, h);
        launch_scaled(y, scaling, amax, N, [&]<class F>(const Output<F>& out) {
            const auto start = [&](auto kernel, int64_t blocks, dim3 block) {
                LAUNCH(kernel, unsigned(blocks), block, 0)
                (out, r, data<T>(x), data<T>(weight), eps, int(h));
            };
            if (!kept) LAUNCH((quantise_rows<F, NormValue<T>>), unsigned(N), threads, 0)
            (out, NormValue<T>{data<T>(x), data<T>(weight), r, h}, h);
            else if (h <= warp_row) start(norm_kept<32, n, F, T>, ceil_div(N, 8), dim3(32, 8));
            else if (h <= 2 * warp_row) start(norm_kept<64, n, F, T>, N, 64);
            else if (h <= 4 * warp_row) start(norm_kept<128, n, F, T>, N, 128);
            else start(norm_kept<256, n, F, T>, N, 256);
        });
    });
}

void swiglu_forward_quantised(const Quantised& y, const Tensor& gate_up, const Scaling& scaling,
                              Tensor amax) {
    const FusedSizes sizes = swiglu_sizes(y, gate_up, scaling, amax);
    const int64_t N = sizes.N, columns = sizes.columns;
    OpSpan span("swiglu_forward_quantised", 7.0 * double(N * columns),
                bytes_of(gate_up) + bytes_in(y));
    if (N == 0) return;
    with_type(gate_up.dtype(), [&]<class T>(T) {
        constexpr int n = pack_size<T>, unroll = 4;
        const bool packs = packs_fit<T>(columns, {gate_up.data(), y.values.data()}) &&
                           scaling.group != ScaleGroup::row;
        const int64_t parts = packs ? ceil_div(columns, int64_t(n) * unroll * threads) : 1;
        check(parts < 65536, "swiglu: rows too long for a grid");
        launch_scaled(y, scaling, amax, N * parts, [&]<class F>(const Output<F>& out) {
            if (packs)
                LAUNCH((swiglu_packs<n, unroll, F, T>), dim3(unsigned(N), unsigned(parts)), threads,
                       0)
            (out, data<T>(gate_up), int(columns));
            else LAUNCH((quantise_rows<F, SwigluValue<T>>), unsigned(N), threads, 0)(
                out, SwigluValue<T>{data<T>(gate_up), columns}, columns);
        });
    });
}

}  // namespace ultrascale::ops
