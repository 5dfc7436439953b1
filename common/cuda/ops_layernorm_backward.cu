// LayerNorm's backward, with xhat = (x - mean) rstd and g = dy weight:
//   dx = rstd (g - mean(g) - xhat mean(g xhat)),  dweight = sum of dy xhat,  dbias = sum of dy.
// Reads dy, x and dresidual and writes dx once. Each block processes many rows, each thread its own
// columns of them, and sums dweight and dbias in registers; a second kernel adds the blocks' sums
// in order.
#include "column_sums.cuh"
#include "core/ops_gpt.h"
#include "rmsnorm_row.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;

// Where the blocks' parts of dweight and dbias go: (blocks, h) each.
struct Partial {
    float *weight, *bias;
};

// Short rows: a warp handles a row, so that no row waits for a barrier, and keeps `packs` packs of
// it in each thread; the next row is loaded meanwhile. dresidual may be dx.
constexpr int warp_threads = 384;  // with 170 registers each
template <int packs, bool has_residual, int n, class T>
__global__ void __launch_bounds__(warp_threads, 1)
    backward_by_warp(T* dx, Partial partial, const T* dy, const T* x, const float* statistics,
                     const T* weight, const T* dresidual, int64_t N, int h) {
    constexpr int warps = warp_threads / 32;
    alignas(16) __shared__ float all[warps][32 * packs * n];
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const int64_t step = int64_t(gridDim.x) * warps;
    float dweight[packs][n] = {}, dbias[packs][n] = {};
    Pack<T, n> dys[packs], xs[packs], residuals[packs];
    float mean = 0, rstd = 0;
    const auto fetch = [&](int64_t row) {
        if (row >= N) return;
        mean = statistics[2 * row], rstd = statistics[2 * row + 1];
#pragma unroll
        for (int p = 0; p < packs; ++p) {
            const int i = (p * 32 + lane) * n;
            dys[p] = load_up_to<n>(dy + row * h, i, h), xs[p] = load_up_to<n>(x + row * h, i, h);
            if constexpr (has_residual) residuals[p] = load_up_to<n>(dresidual + row * h, i, h);
        }
    };
    int64_t row = int64_t(blockIdx.x) * warps + warp;
    fetch(row);
    for (; row < N; row += step) {
        float g[packs][n], xhat[packs][n], r[packs][n] = {}, sum = 0, dot = 0;
        const float own_rstd = rstd;
#pragma unroll
        for (int p = 0; p < packs; ++p) {
            const int i = (p * 32 + lane) * n;
            float w[n];
            to_floats(w, load_up_to<n>(weight, i, h));
            to_floats(g[p], dys[p]), to_floats(xhat[p], xs[p]);
            if constexpr (has_residual) to_floats(r[p], residuals[p]);
#pragma unroll
            for (int j = 0; j < n; ++j) {  // beyond the row's end dy and weight are 0
                xhat[p][j] = (xhat[p][j] - mean) * rstd;
                dweight[p][j] += g[p][j] * xhat[p][j], dbias[p][j] += g[p][j];
                g[p][j] *= w[j];
                sum += g[p][j], dot += g[p][j] * xhat[p][j];
            }
        }
        fetch(row + step);
        sum = warp_sum(sum) / float(h), dot = warp_sum(dot) / float(h);
#pragma unroll
        for (int p = 0; p < packs; ++p) {
            const int i = (p * 32 + lane) * n;
            if (i >= h) continue;
#pragma unroll
            for (int j = 0; j < n; ++j) r[p][j] += own_rstd * (g[p][j] - sum - xhat[p][j] * dot);
            store(dx + row * h + i, from_floats<T>(r[p]));
        }
    }
    let_next_kernel_start();
    const auto add_warps = [&](const float(&own)[packs][n], float* to) {
        __syncthreads();
#pragma unroll
        for (int p = 0; p < packs; ++p) store_floats<n>(&all[warp][(p * 32 + lane) * n], own[p]);
        __syncthreads();
        for (int i = int(threadIdx.x); i < h; i += warp_threads) {
            float total = 0;
#pragma unroll
            for (int w = 0; w < warps; ++w) total += all[w][i];
            to[int64_t(blockIdx.x) * h + i] = total;
        }
    };
    add_warps(dweight, partial.weight), add_warps(dbias, partial.bias);
}

// Longer rows: a block has 1024 threads; `row_threads` of them work on a row, each on one pack of
// its columns: row_threads * n is at least h. dresidual may be dx.
constexpr int backward_threads = 1024;
template <int row_threads, bool has_residual, int n, class T>
__global__ void __launch_bounds__(backward_threads, 1)
    backward_by_block(T* dx, Partial partial, const T* dy, const T* x, const float* statistics,
                      const T* weight, const T* dresidual, int64_t N, int h) {
    constexpr int rows = backward_threads / row_threads, warps = row_threads / 32;
    __shared__ float sums[2][rows][warps], dots[2][rows][warps];
    alignas(16) __shared__ float all[backward_threads * n];
    const int thread = threadIdx.x % row_threads, group = threadIdx.x / row_threads,
              column = thread * n;
    const bool mine = column < h;
    const int64_t first_row = int64_t(blockIdx.x) * rows + group, step = int64_t(gridDim.x) * rows;
    float dweight[n] = {}, dbias[n] = {};
    Pack<T, n> weights, dys, xs;
    if (mine) weights = load<n>(weight + column);
    int parity = 0;
    for (int64_t row = first_row; row - group < N; row += step) {  // equally often for all groups
        const bool here = mine && row < N;
        float sum = 0, dot = 0, mean = 0, rstd = 0;
        if (here) {
            dys = load<n>(dy + row * h + column), xs = load<n>(x + row * h + column);
            mean = statistics[2 * row], rstd = statistics[2 * row + 1];
#pragma unroll
            for (int j = 0; j < n; ++j) {
                const float d = to_float(dys.x[j]), xhat = (to_float(xs.x[j]) - mean) * rstd,
                            g = d * to_float(weights.x[j]);
                dweight[j] += d * xhat, dbias[j] += d;
                sum += g, dot += g * xhat;
            }
        }
        // Two buffers alternate, so the next row's sums do not overwrite these while some threads
        // still read them.
        sum = warp_sum(sum), dot = warp_sum(dot);
        if (threadIdx.x % 32 == 0)
            sums[parity][group][thread / 32] = sum, dots[parity][group][thread / 32] = dot;
        __syncthreads();
        sum = 0, dot = 0;
#pragma unroll
        for (int i = 0; i < warps; ++i)
            sum += sums[parity][group][i], dot += dots[parity][group][i];
        parity ^= 1;
        if (!here) continue;
        sum /= float(h), dot /= float(h);
        Pack<T, n> residuals, out;
        if constexpr (has_residual) residuals = load<n>(dresidual + row * h + column);
#pragma unroll
        for (int j = 0; j < n; ++j) {
            const float g = to_float(dys.x[j]) * to_float(weights.x[j]),
                        xhat = (to_float(xs.x[j]) - mean) * rstd;
            out.x[j] = from_float<T>((has_residual ? to_float(residuals.x[j]) : 0.0f) +
                                     rstd * (g - sum - xhat * dot));
        }
        store(dx + row * h + column, out);
    }
    // Adds the groups' sums in order, through shared memory.
    let_next_kernel_start();
    const auto add_groups = [&](const float(&own)[n], float* to) {
        __syncthreads();
        store_floats<n>(all + threadIdx.x * n, own);
        __syncthreads();
        for (int i = threadIdx.x; i < h; i += backward_threads) {
            float total = 0;
#pragma unroll
            for (int g = 0; g < rows; ++g) total += all[g * row_threads * n + i];
            to[int64_t(blockIdx.x) * h + i] = total;
        }
    };
    add_groups(dweight, partial.weight), add_groups(dbias, partial.bias);
}

// Rows of any length and alignment, read twice; dweight and dbias are summed in `partial` itself,
// each column by one thread.
template <class T>
__global__ void __launch_bounds__(threads)
    backward_any(T* dx, Partial partial, const T* dy, const T* x, const float* statistics,
                 const T* weight, const T* dresidual, int64_t N, int h) {
    partial.weight += blockIdx.x * h, partial.bias += blockIdx.x * h;
    for (int i = threadIdx.x; i < h; i += threads) partial.weight[i] = partial.bias[i] = 0;
    for (int64_t row = blockIdx.x; row < N; row += gridDim.x) {
        const T *dys = dy + row * h, *xs = x + row * h;
        const float mean = statistics[2 * row], rstd = statistics[2 * row + 1];
        float sum = 0, dot = 0;
        for (int64_t i = threadIdx.x; i < h; i += threads) {
            const float g = to_float(dys[i]) * to_float(weight[i]);
            sum += g, dot += g * (to_float(xs[i]) - mean) * rstd;
        }
        sum = block_sum<threads>(sum) / float(h), dot = block_sum<threads>(dot) / float(h);
        for (int64_t i = threadIdx.x; i < h; i += threads) {
            const float d = to_float(dys[i]), xhat = (to_float(xs[i]) - mean) * rstd;
            const float residual = dresidual ? to_float(dresidual[row * h + i]) : 0.0f;
            partial.weight[i] += d * xhat, partial.bias[i] += d;
            dx[row * h + i] =
                from_float<T>(residual + rstd * (d * to_float(weight[i]) - sum - xhat * dot));
        }
    }
}

template <class T, class W>
void backward(T* dx, W* dweight, W* dbias, const T* dy, const T* x, const float* statistics,
              const T* weight, const T* dresidual, int64_t N, int64_t h, bool add) {
    // Starts a kernel whose blocks take `rows` rows at a time.
    const auto start = [&](auto kernel, int block_threads, int rows, int blocks_each) {
        const int blocks =
            int(std::min(ceil_div(N, rows), int64_t(blocks_each * multiprocessors())));
        const Tensor sums = Tensor::empty({2, blocks, h}, DType::fp32, Memory::workspace);
        const Partial partial{sums.as<float>(), sums.as<float>() + blocks * h};
        LAUNCH(kernel, blocks, block_threads, 0)
        (dx, partial, dy, x, statistics, weight, dresidual, N, int(h));
        for (const auto& [to, from] : {std::pair(dweight, partial.weight), {dbias, partial.bias}})
            LAUNCH_EARLY(add_partials<W>, unsigned(ceil_div(h, 32)), dim3(32, 32), 0)
        (to, from, blocks, h, add);
    };
    const auto by_warp = [&]<int packs, int n>() {
        start(
            dresidual ? backward_by_warp<packs, true, n, T> : backward_by_warp<packs, false, n, T>,
            warp_threads, warp_threads / 32, 1);
    };
    const auto by_block = [&]<int row_threads, int n>() {
        start(dresidual ? backward_by_block<row_threads, true, n, T>
                        : backward_by_block<row_threads, false, n, T>,
              backward_threads, backward_threads / row_threads, 1);
    };
    constexpr int n = pack_size<T>;
    if (!packs_fit<T>(h, {dx, dy, x, weight, dresidual}) || h > 1024 * n)
        start(backward_any<T>, threads, 1, 4);
    else if (h <= 3 * 32 * n)
        by_warp.template operator()<3, n>();
    else if (h <= 4 * 32 * n)
        by_warp.template operator()<4, n>();
    else if (h <= 512 * n)
        by_block.template operator()<512, n>();
    else
        by_block.template operator()<1024, n>();
}

}  // namespace

void layernorm_backward(Tensor dx, Tensor dweight, Tensor dbias, const Tensor& dy, const Tensor& x,
                        const Tensor& statistics, const Tensor& weight, const Tensor& dresidual,
                        bool add) {
    const int64_t N = x.rows(), h = x.cols();
    check(dx.numel() == N * h && dy.numel() == N * h, "layernorm_backward: dx, dy, x are (N, h)");
    check(statistics.numel() == 2 * N && weight.numel() == h && dweight.numel() == h &&
              dbias.numel() == h,
          "layernorm_backward: statistics (N, 2), weight, dweight, dbias (h)");
    check(!dresidual || dresidual.numel() == N * h, "layernorm_backward: dresidual is (N, h)");
    OpSpan span("layernorm_backward", 14.0 * double(N * h),
                bytes_of(dx, dy, x, statistics, weight, dweight, dbias) +
                    (dresidual ? bytes_of(dresidual) : 0));
    with_type(x.dtype(), [&]<class T>(T) {
        with_type(dweight.dtype(), [&]<class W>(W) {
            backward(data<T>(dx), data<W>(dweight), data<W>(dbias), data<T>(dy), data<T>(x),
                     statistics.as<float>(), data<T>(weight),
                     dresidual ? data<T>(dresidual) : nullptr, N, h, add);
        });
    });
}

}  // namespace ultrascale::ops
