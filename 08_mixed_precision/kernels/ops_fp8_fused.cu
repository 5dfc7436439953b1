// RMSNorm and SwiGLU whose results are written in 8 bits. In bf16 the norm reads 2 bytes per
// element and writes 1; SwiGLU reads 4 and writes 1. With the scale of the whole tensor, unless it
// is given, the inputs are read once more before, to find the largest magnitude.
//
// A tile of 1 x 128 is in neighbouring lanes of a warp, which find its largest number by shuffles:
// 16 lanes with 8 numbers each (16 bits), or 32 with 4 (fp32). Longer rows, and rows of other sizes
// and addresses, go through quantise_rows (fp8_rows.cuh), where a warp takes a tile.
//
// There is a kernel for each kind of scale: a kernel that decides while it runs has more
// instructions, and the norm, which is short, would take longer.
#include "cuda/rmsnorm_row.cuh"
#include "fp8_rows.cuh"
#include "ops_quantised_checks.h"

namespace ultrascale::ops {

namespace {

constexpr int threads = row_threads;

// ---- RMSNorm ------------------------------------------------------------------------------------

// `group` threads handle a row of h elements, h at most group * packs_kept * n; blockDim is (group,
// rows per block).
template <ScaleGroup kind, int group, int n, class F, class T>
__global__ void __launch_bounds__(group == 32 ? threads : group)
    norm_kept(const Output<F> out, float* rstd, const T* x, const T* weight, float eps, int h) {
    wait_for_kernel_before();
    const int64_t row = out.row(int64_t(blockIdx.x) * blockDim.y + threadIdx.y);
    if (row < 0 || row >= out.N) return;  // the whole group
    Pack<T, n> kept[packs_kept];
    const float r = load_row<group>(kept, x + row * h, eps, h);
    if (threadIdx.x == 0) rstd[row] = r;
    const int first = int(threadIdx.x) * n, stride = group * n;
#pragma unroll
    for (int p = 0; p < packs_kept; ++p)
        normalise(kept[p], r, load_up_to<n>(weight, first + p * stride, h));
    let_next_kernel_start();
    scale_and_store<kind>(out, kept, {row, h, first, stride, row}, [](float m) {
        if constexpr (group == 32)
            return warp_max(m);
        else
            return block_max<group>(m);
    });
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

// Blocks: (row, part of the row), with `width` threads; a thread takes `unroll` packs, a block's
// width apart. With a scale for each row, a block has a whole row.
constexpr int unroll = 4;
constexpr int width_of(ScaleGroup kind) { return kind == ScaleGroup::row ? 2 * threads : threads; }

template <ScaleGroup kind, int n, class F, class T>
__global__ void __launch_bounds__(width_of(kind))
    swiglu_packs(const Output<F> out, const T* gate_up, int columns) {
    constexpr int width = width_of(kind), stride = width * n;
    const int64_t row = out.row(blockIdx.x);
    const int first = int(blockIdx.y * unroll * width + threadIdx.x) * n;
    const T *gate = gate_up + row * 2 * columns, *up = gate + columns;
    Pack<T, n> gates[unroll], ups[unroll];
#pragma unroll
    for (int k = 0; k < unroll; ++k)
        if (const int i = first + k * stride; i < columns)
            gates[k] = load<n>(gate + i), ups[k] = load<n>(up + i);
#pragma unroll
    for (int k = 0; k < unroll; ++k) {
        float y[n] = {};
        if (first + k * stride < columns) {
            float up_values[n];
            to_floats(y, gates[k]), to_floats(up_values, ups[k]);
#pragma unroll
            for (int j = 0; j < n; ++j) y[j] = swiglu(y[j], up_values[j]);
        }
        gates[k] = from_floats<T>(y);
    }
    scale_and_store<kind>(out, gates, {row, columns, first, stride, row * gridDim.y + blockIdx.y},
                          [](float m) { return block_max<width>(m); });
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
        constexpr int n = pack_size<T>;
        const bool kept =
            packs_fit<T>(h, {x.data(), weight.data(), y.values.data()}) && h <= longest_kept<n>();
        float* const r = rstd.as<float>();
        if (!kept) LAUNCH(norm_statistics<T>, unsigned(N), threads, 0)(r, data<T>(x), eps, h);
        launch_scaled(y, scaling, amax, N, [&]<class F, ScaleGroup kind>(const Output<F>& out) {
            if (!kept) LAUNCH((quantise_rows<F, NormValue<T>>), unsigned(N), threads, 0)
            (out, NormValue<T>{data<T>(x), data<T>(weight), r, h}, h);
            else with_group<n>(N, h, [&](auto group, unsigned blocks, dim3 block) {
                LAUNCH_EARLY((norm_kept<kind, group, n, F, T>), blocks, block, 0)
                (out, r, data<T>(x), data<T>(weight), eps, int(h));
            });
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
        constexpr int n = pack_size<T>;
        const int64_t part = int64_t(n) * unroll * width_of(scaling.group),
                      parts = ceil_div(columns, part);
        check(parts < 65536, "swiglu: rows too long for a grid");
        const bool packs = packs_fit<T>(columns, {gate_up.data(), y.values.data()}) &&
                           (parts == 1 || scaling.group != ScaleGroup::row);
        launch_scaled(y, scaling, amax, packs ? N * parts : N,
                      [&]<class F, ScaleGroup kind>(const Output<F>& out) {
                          if (packs)
                              LAUNCH((swiglu_packs<kind, n, F, T>),
                                     dim3(unsigned(N), unsigned(parts)), width_of(kind), 0)
                          (out, data<T>(gate_up), int(columns));
                          else LAUNCH((quantise_rows<F, SwigluValue<T>>), unsigned(N), threads, 0)(
                              out, SwigluValue<T>{data<T>(gate_up), columns}, columns);
                      });
    });
}

}  // namespace ultrascale::ops
