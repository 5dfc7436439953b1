// Products in groups without tensor cores, for fp32 and for shapes that TMA cannot read: tiles of
// 64 x 64 sums in registers, 16 per thread, from tiles of 64 x 16 in shared memory (07_kernels,
// 3_product). A tile has rows of only one group; elements past the group's last row count as zero.
#include "grouped.cuh"

namespace ultrascale::ops {

namespace {

constexpr int tile = 64, depth = 16, per_thread = 4, threads = 256;

// A tile has one additional row, so that the columns of a tile that is stored transposed lie in
// different banks.
struct Shared {
    float a[depth][tile + 1], b[depth][tile + 1];
};

// sum += a (64, K) b (K, 64). a(row, k) and b(k, column) return an element, or 0 outside. k_runs:
// neighbouring threads load neighbouring k, or neighbouring rows (columns).
template <bool a_k_runs, bool b_k_runs, class A, class B>
__device__ void multiply(float (&sum)[per_thread][per_thread], int64_t K, A&& a, B&& b) {
    __shared__ Shared shared;
    const int thread = threadIdx.x, row = thread / 16, column = thread % 16;
    for (int64_t k0 = 0; k0 < K; k0 += depth) {
#pragma unroll
        for (int i = thread; i < tile * depth; i += threads) {
            const int a_k = a_k_runs ? i % depth : i / tile,
                      a_row = a_k_runs ? i / depth : i % tile,
                      b_k = b_k_runs ? i % depth : i / tile,
                      b_col = b_k_runs ? i / depth : i % tile;
            shared.a[a_k][a_row] = k0 + a_k < K ? a(a_row, k0 + a_k) : 0.0f;
            shared.b[b_k][b_col] = k0 + b_k < K ? b(k0 + b_k, b_col) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < depth; ++k)
#pragma unroll
            for (int i = 0; i < per_thread; ++i)
#pragma unroll
                for (int j = 0; j < per_thread; ++j)
                    sum[i][j] += shared.a[k][row + 16 * i] * shared.b[k][column + 16 * j];
        __syncthreads();
    }
}

// Calls visit(row, column, sum) for this thread's sums of the tile.
template <class Visit>
__device__ void for_each_sum(const float (&sum)[per_thread][per_thread], Visit&& visit) {
#pragma unroll
    for (int i = 0; i < per_thread; ++i)
#pragma unroll
        for (int j = 0; j < per_thread; ++j)
            visit(int(threadIdx.x) / 16 + 16 * i, int(threadIdx.x) % 16 + 16 * j, sum[i][j]);
}

// y_g (rows, columns) = x_g (rows, K) times W_g^T, W_g (columns, K), or W_g (K, columns) itself.
// Blocks: (tile of rows, tile of columns).
template <bool transposed, class T>
__global__ void __launch_bounds__(threads)
    rows_kernel(T* y, const T* x, const T* w, const int32_t* counts, int G, int64_t columns,
                int64_t K) {
    GroupWalk walk{counts, G, tile};
    if (!walk.find(blockIdx.x)) return;
    const int64_t row0 = walk.row(blockIdx.x), column0 = int64_t(blockIdx.y) * tile;
    const int rows = int(min(walk.end - row0, int64_t(tile))),
              here = int(min(columns - column0, int64_t(tile)));
    w += walk.group * columns * K + (transposed ? column0 * K : column0);
    x += row0 * K, y += row0 * columns + column0;
    float sum[per_thread][per_thread] = {};
    multiply<true, transposed>(
        sum, K, [=](int r, int64_t k) { return r < rows ? to_float(x[r * K + k]) : 0.0f; },
        [=](int64_t k, int c) {
            return c < here ? to_float(transposed ? w[c * K + k] : w[k * columns + c]) : 0.0f;
        });
    for_each_sum(sum, [=](int r, int c, float value) {
        if (r < rows && c < here) y[r * columns + c] = from_float<T>(value);
    });
}

// dw_g (out, in) = dy_g^T x_g + addend_g. Blocks: (tile of `in`, tile of `out`, group).
template <class T, class D>
__global__ void __launch_bounds__(threads)
    weight_kernel(D* dw, const T* dy, const T* x, const int32_t* counts, const D* addend,
                  int64_t out, int64_t in) {
    const int64_t group = blockIdx.z, row0 = int64_t(blockIdx.y) * tile,
                  column0 = int64_t(blockIdx.x) * tile;
    int64_t begin = 0;
    for (int64_t g = 0; g < group; ++g) begin += counts[g];
    dy += begin * out + row0, x += begin * in + column0;
    const int rows = int(min(out - row0, int64_t(tile))),
              here = int(min(in - column0, int64_t(tile)));
    float sum[per_thread][per_thread] = {};
    multiply<false, false>(
        sum, counts[group],
        [=](int r, int64_t k) { return r < rows ? to_float(dy[k * out + r]) : 0.0f; },
        [=](int64_t k, int c) { return c < here ? to_float(x[k * in + c]) : 0.0f; });
    for_each_sum(sum, [=](int r, int c, float value) {
        if (r >= rows || c >= here) return;
        const int64_t at = (group * out + row0 + r) * in + column0 + c;
        dw[at] = from_float<D>(addend ? to_float(addend[at]) + value : value);
    });
}

template <bool transposed>
void rows_product(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& counts,
                  const GroupSizes& n) {
    const int64_t columns = transposed ? n.out : n.in, K = transposed ? n.in : n.out;
    const dim3 grid(unsigned(n.R == 0 ? 0 : most_row_tiles(n.R, n.G, tile)),
                    unsigned(ceil_div(columns, tile)));
    check(grid.y < 65536, "grouped_matmul: too many columns for a grid");
    with_type(y.dtype(), [&]<class T>(T) {
        LAUNCH((rows_kernel<transposed, T>), grid, threads, 0)
        (data<T>(y), data<T>(x), data<T>(w), counts.as<int32_t>(), int(n.G), columns, K);
    });
}

}  // namespace

void grouped_matmul(Tensor y, const Tensor& x, const Tensor& w, const Tensor& counts) {
    const GroupSizes n = group_sizes(y, x, w, counts);
    check(w.dtype() == x.dtype(), "grouped_matmul: W and the rows share their dtype");
    OpSpan span("grouped_matmul", group_flops(n), bytes_of(y, x, w));
    if (!grouped_matmul_on_tensor_cores(y, x, w, counts)) rows_product<true>(y, x, w, counts, n);
}

void grouped_matmul_backward_input(Tensor dx, const Tensor& dy, const Tensor& w,
                                   const Tensor& counts) {
    const GroupSizes n = group_sizes(dy, dx, w, counts);
    check(w.dtype() == dx.dtype(), "grouped_matmul: W and the rows share their dtype");
    OpSpan span("grouped_matmul_backward_input", group_flops(n), bytes_of(dx, dy, w));
    if (!grouped_matmul_backward_input_on_tensor_cores(dx, dy, w, counts))
        rows_product<false>(dx, dy, w, counts, n);
}

void grouped_matmul_backward_weight(Tensor dw, const Tensor& dy, const Tensor& x,
                                    const Tensor& counts, const Tensor& addend) {
    const GroupSizes n = group_sizes(dy, x, dw, counts);
    check(!addend || (addend.numel() == dw.numel() && addend.dtype() == dw.dtype()),
          "grouped_matmul_backward_weight: addend is (G, out, in), like dw");
    OpSpan span("grouped_matmul_backward_weight", group_flops(n),
                bytes_of(dw, dy, x) + (addend ? bytes_of(addend) : 0));
    if (grouped_matmul_backward_weight_on_tensor_cores(dw, dy, x, counts, addend)) return;
    const dim3 grid(unsigned(ceil_div(n.in, tile)), unsigned(ceil_div(n.out, tile)), unsigned(n.G));
    check(grid.y < 65536, "grouped_matmul: too many columns for a grid");
    with_type(x.dtype(), [&]<class T>(T) {
        with_type(dw.dtype(), [&]<class D>(D) {
            LAUNCH((weight_kernel<T, D>), grid, threads, 0)
            (data<D>(dw), data<T>(dy), data<T>(x), counts.as<int32_t>(),
             addend ? data<D>(addend) : nullptr, n.out, n.in);
        });
    });
}

}  // namespace ultrascale::ops
