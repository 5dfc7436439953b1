// RMSNorm: y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps).
//
// Forward: reads x and writes y once (4 bytes per element in bf16); a warp (or, for long rows, a
// block) takes one row and keeps it in registers between the sum and the product.
//
// Backward, with xhat = x * rstd and g = dy * weight:
//   dx = rstd * (g - xhat * mean(g * xhat)),  dweight = sum over rows of dy * xhat.
// Reads dy, x and dresidual and writes dx once (8 bytes per element in bf16). Each block processes
// many rows, each thread its own columns of them, and sums dweight in registers; a second kernel
// adds the blocks' sums (blocks, h) in order.
#include "column_sums.cuh"
#include "rmsnorm_row.cuh"

namespace ultrascale::ops {

namespace {

// ---- forward ------------------------------------------------------------------------------------

// `group` threads handle a row of h elements, h at most group * packs_kept * n; blockDim is (group,
// rows per block).
template <int group, int n, class T>
__global__ void __launch_bounds__(group == 32 ? 256 : group)
    forward_kept(T* y, float* rstd, const T* x, const T* weight, float eps, int64_t N, int h) {
    const int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row >= N) return;  // the whole group
    x += row * h, y += row * h;
    Pack<T, n> kept[packs_kept];
    const float r = load_row<group>(kept, x, eps, h);
    if (threadIdx.x == 0) rstd[row] = r;
#pragma unroll
    for (int p = 0; p < packs_kept; ++p) {
        const int i = (p * group + int(threadIdx.x)) * n;
        normalise(kept[p], r, load_up_to<n>(weight, i, h));
        if (i < h) store(y + i, kept[p]);
    }
}

constexpr int threads = 256;  // per block, unless stated otherwise

// Rows of any length and alignment, read twice (the second time from a cache).
template <class T>
__global__ void __launch_bounds__(threads)
    forward_any(T* y, float* rstd, const T* x, const T* weight, float eps, int64_t h) {
    const int64_t row = blockIdx.x;
    x += row * h, y += row * h;
    float squares = 0;
    for (int64_t i = threadIdx.x; i < h; i += threads) squares += to_float(x[i]) * to_float(x[i]);
    const float r = 1.0f / sqrtf(block_sum<threads>(squares) / float(h) + eps);
    if (threadIdx.x == 0) rstd[row] = r;
    for (int64_t i = threadIdx.x; i < h; i += threads)
        y[i] = from_float<T>(to_float(x[i]) * r * to_float(weight[i]));
}

template <class T>
void forward(T* y, float* rstd, const T* x, const T* weight, float eps, int64_t N, int64_t h) {
    constexpr int n = pack_size<T>;
    if (!packs_fit<T>(h, {y, x, weight}) || h > longest_kept<n>())
        LAUNCH(forward_any<T>, unsigned(N), threads, 0)(y, rstd, x, weight, eps, h);
    else
        with_group<n>(N, h, [&](auto group, unsigned blocks, dim3 block) {
            LAUNCH((forward_kept<group, n, T>), blocks, block, 0)
            (y, rstd, x, weight, eps, N, int(h));
        });
}

// ---- backward -----------------------------------------------------------------------------------
// A block has 1024 threads; `row_threads` of them work on a row, each on one pack of its columns:
// row_threads * n is at least h. Meanwhile the next rows are loaded into a ring in shared memory,
// where a thread reads only what it loaded itself; this keeps the memory busy while a row's sum is
// reduced. partial (blocks, h) gets the block's part of dweight. dresidual may be dx.
constexpr int stages = 2, backward_threads = 1024;
constexpr size_t ring_bytes =
    stages * 3 * backward_threads * 16;  // 96 KiB: GeForce allows 99 per block

template <int row_threads, bool has_residual, int n, class T>
__global__ void __launch_bounds__(backward_threads, 1)
    backward_kept(T* dx, float* partial, const T* dy, const T* x, const float* rstd,
                  const T* weight, const T* dresidual, int64_t N, int h) {
    constexpr int rows = backward_threads / row_threads, warps = row_threads / 32;
    DYNAMIC_SHARED(float4, ring);  // (stages, 3, threads) packs
    __shared__ float sums[2][rows][warps];
    const int thread = threadIdx.x % row_threads, group = threadIdx.x / row_threads,
              column = thread * n;
    const bool mine = column < h;
    const auto slot = [&](int stage, int which) {
        return reinterpret_cast<T*>(ring + (stage * 3 + which) * backward_threads + threadIdx.x);
    };
    const int64_t first_row = int64_t(blockIdx.x) * rows + group, step = int64_t(gridDim.x) * rows;
    const auto fetch = [&](int64_t row, int stage) {
        if (const int64_t i = row * h + column; mine && row < N) {
            load_async<n>(slot(stage, 0), dy + i);
            load_async<n>(slot(stage, 1), x + i);
            if constexpr (has_residual) load_async<n>(slot(stage, 2), dresidual + i);
        }
        __pipeline_commit();
    };
    for (int stage = 0; stage < stages; ++stage) fetch(first_row + stage * step, stage);

    Pack<T, n> w;
    if (mine) w = load<n>(weight + column);
    float dweight[n] = {};
    float next_rstd = first_row < N ? rstd[first_row] : 0.0f;
    int stage = 0, parity = 0;
    for (int64_t row = first_row; row - group < N;
         row += step) {  // the same number of iterations for all groups
        const float r = next_rstd;
        if (row + step < N) next_rstd = rstd[row + step];
        __pipeline_wait_prior(stages - 1);
        const bool here = mine && row < N;
        Pack<T, n> dys, xs, residuals;
        float dot = 0;  // of dy * weight and x
        if (here) {
            dys = load<n>(slot(stage, 0)), xs = load<n>(slot(stage, 1));
            if constexpr (has_residual) residuals = load<n>(slot(stage, 2));
#pragma unroll
            for (int j = 0; j < n; ++j) {
                const float product = to_float(dys.x[j]) * to_float(xs.x[j]);
                dot += product * to_float(w.x[j]);
                dweight[j] += product * r;
            }
        }
        fetch(row + stages * step, stage);  // into the slot that was just read
        stage = stage + 1 == stages ? 0 : stage + 1;

        // The row's sum. Two buffers alternate, so the next row's sums do not overwrite these while
        // some threads still read them.
        dot = warp_sum(dot);
        if (threadIdx.x % 32 == 0) sums[parity][group][thread / 32] = dot;
        __syncthreads();
        dot = 0;
#pragma unroll
        for (int i = 0; i < warps; ++i) dot += sums[parity][group][i];
        parity ^= 1;
        if (!here) continue;
        const float x_factor = r * r * r * dot / float(h);
        Pack<T, n> out;
#pragma unroll
        for (int j = 0; j < n; ++j) {
            const float residual = has_residual ? to_float(residuals.x[j]) : 0.0f;
            out.x[j] = from_float<T>(residual + r * (to_float(dys.x[j]) * to_float(w.x[j])) -
                                     x_factor * to_float(xs.x[j]));
        }
        store(dx + row * h + column, out);
    }

    // Adds the groups' dweight in order, through shared memory.
    let_next_kernel_start();
    float* const all = reinterpret_cast<float*>(ring);  // (rows, row_threads * n)
    __pipeline_wait_prior(0);
    __syncthreads();
    store_floats<n>(all + threadIdx.x * n, dweight);
    __syncthreads();
    for (int i = threadIdx.x; i < h; i += backward_threads) {
        float sum = 0;
#pragma unroll
        for (int g = 0; g < rows; ++g) sum += all[g * row_threads * n + i];
        partial[int64_t(blockIdx.x) * h + i] = sum;
    }
}

// Rows of any length and alignment, read twice; dweight is summed in `partial` itself, each column
// by one thread.
template <class T>
__global__ void __launch_bounds__(threads)
    backward_any(T* dx, float* partial, const T* dy, const T* x, const float* rstd, const T* weight,
                 const T* dresidual, int64_t N, int64_t h) {
    partial += blockIdx.x * h;
    for (int64_t i = threadIdx.x; i < h; i += threads) partial[i] = 0;
    for (int64_t row = blockIdx.x; row < N; row += gridDim.x) {
        const T *dys = dy + row * h, *xs = x + row * h;
        const float r = rstd[row];
        float dot = 0;
        for (int64_t i = threadIdx.x; i < h; i += threads)
            dot += to_float(dys[i]) * to_float(weight[i]) * to_float(xs[i]);
        const float mean = block_sum<threads>(dot) * r / float(h);
        for (int64_t i = threadIdx.x; i < h; i += threads) {
            const float d = to_float(dys[i]), xhat = to_float(xs[i]) * r;
            const float residual = dresidual ? to_float(dresidual[row * h + i]) : 0.0f;
            partial[i] += d * xhat;
            dx[row * h + i] = from_float<T>(residual + r * (d * to_float(weight[i]) - xhat * mean));
        }
    }
}

template <class T, class W>
void backward(T* dx, W* dweight, const T* dy, const T* x, const float* rstd, const T* weight,
              const T* dresidual, int64_t N, int64_t h, bool add) {
    constexpr int n = pack_size<T>;
    const bool kept = packs_fit<T>(h, {dx, dy, x, weight, dresidual}) && h <= 1024 * n;
    const int row_threads = h <= 128 * n ? 128 : h <= 256 * n ? 256 : h <= 512 * n ? 512 : 1024;
    const int blocks = int(std::min(kept ? ceil_div(N, backward_threads / row_threads) : N,
                                    int64_t((kept ? 1 : 4) * multiprocessors())));
    const Tensor partial = Tensor::empty({blocks, h}, DType::fp32, Memory::workspace);
    float* sums = partial.as<float>();
    const auto start = [&](auto kernel) {
        LAUNCH(kernel, blocks, backward_threads, ring_bytes)
        (dx, sums, dy, x, rstd, weight, dresidual, N, int(h));
    };
    const auto start_rows = [&]<int row_threads>(std::integral_constant<int, row_threads>) {
        dresidual ? start(backward_kept<row_threads, true, n, T>)
                  : start(backward_kept<row_threads, false, n, T>);
    };
    if (!kept)
        LAUNCH(backward_any<T>, blocks, threads, 0)(dx, sums, dy, x, rstd, weight, dresidual, N, h);
    else if (row_threads == 128)
        start_rows(std::integral_constant<int, 128>());
    else if (row_threads == 256)
        start_rows(std::integral_constant<int, 256>());
    else if (row_threads == 512)
        start_rows(std::integral_constant<int, 512>());
    else
        start_rows(std::integral_constant<int, 1024>());
    LAUNCH_EARLY(add_partials<W>, unsigned(ceil_div(h, 32)), dim3(32, 32), 0)
    (dweight, sums, blocks, h, add);
}

}  // namespace

void rmsnorm_forward(Tensor y, Tensor rstd, const Tensor& x, const Tensor& weight, float eps) {
    const int64_t N = x.rows(), h = x.cols();
    check(y.numel() == N * h && rstd.numel() == N && weight.numel() == h,
          "rmsnorm_forward: y, x (N, h), rstd (N), weight (h)");
    OpSpan span("rmsnorm_forward", 4.0 * double(N * h), bytes_of(y, rstd, x, weight));
    with_type(x.dtype(), [&]<class T>(T) {
        forward(data<T>(y), rstd.as<float>(), data<T>(x), data<T>(weight), eps, N, h);
    });
}

void rmsnorm_backward(Tensor dx, Tensor dweight, const Tensor& dy, const Tensor& x,
                      const Tensor& rstd, const Tensor& weight, const Tensor& dresidual, bool add) {
    const int64_t N = x.rows(), h = x.cols();
    check(dx.numel() == N * h && dy.numel() == N * h, "rmsnorm_backward: dx, dy, x are (N, h)");
    check(rstd.numel() == N && weight.numel() == h && dweight.numel() == h,
          "rmsnorm_backward: rstd (N), weight, dweight (h)");
    check(!dresidual || dresidual.numel() == N * h, "rmsnorm_backward: dresidual is (N, h)");
    OpSpan span("rmsnorm_backward", 10.0 * double(N * h),
                bytes_of(dx, dy, x, rstd, weight, dweight) + (dresidual ? bytes_of(dresidual) : 0));
    with_type(x.dtype(), [&]<class T>(T) {
        with_type(dweight.dtype(), [&]<class W>(W) {
            const T* residual = dresidual ? data<T>(dresidual) : nullptr;
            backward(data<T>(dx), data<W>(dweight), data<T>(dy), data<T>(x), rstd.as<float>(),
                     data<T>(weight), residual, N, h, add);
        });
    });
}

}  // namespace ultrascale::ops
