// Attention's plain kernels, for the cases that the tensor-core kernels (attention_mma_*.cu, on
// Hopper attention_wgmma_*.cu) do not support: fp32, and bf16 with other head dimensions.
//
// All three kernels have the same structure. A warp owns a few rows (queries, or in dk and dv keys)
// in shared memory, and the block loops over the other side in tiles of 32, staged in shared memory
// as fp32:
//     each lane takes one row of the tile   dots:        its products with the warp's rows, e.g.
//                                                        S = Q K^T
//     the warp writes weights (32, rows)                 P = exp(S - max), or dS
//     each lane takes some columns          accumulate:  rows += weights^T * tile, e.g. O += P V
// Shared-memory bandwidth is the bottleneck, so each value that is read is used for all rows of the
// warp. FLOPs per visible pair and head: 4 D forward, 14 D backward (both of its kernels compute S
// and dP). There are no atomics, so every run gives the same bits.
#include "attention.cuh"
#include "cuda/ops_common.cuh"

namespace ultrascale::ops {

namespace {

constexpr int warps = 4, threads = 32 * warps, tile_rows = 32;

template <class T>
struct Inputs {
    const T *q, *k, *v, *dout;
    const float *lse, *delta;
    AttentionSizes s;
    DeviceMask mask;
    bool aligned;  // all tensors, to 16 bytes
};

// Which rows a thread works on, and where they are in shared memory, for heads of at most 32 * c
// columns. A lane accumulates columns lane, lane + 32, ... of its warp's rows.
template <int c>
struct ThreadPosition {
    // rows: per warp. stride: from row to row in shared memory, padded by 16 bytes, so that lanes
    // read from different banks.
    static constexpr int rows = c <= 4 ? 8 : 2, block_rows = warps * rows, stride = 32 * c + 4;
    // Two tiles, two matrices of the block's rows and the warps' weights: 84 KB at most; the
    // smallest GPUs have 99.
    static constexpr int tile_size = tile_rows * stride, rows_size = block_rows * stride,
                         weights_size = tile_rows * rows;
    static constexpr size_t shared_bytes =
        (2 * tile_size + 2 * rows_size + warps * weights_size) * sizeof(float);
    static unsigned blocks(int64_t T, int64_t heads) {
        return unsigned(ceil_div(T, block_rows) * heads);
    }

    int64_t b, head, block_first,
        first;  // the block's and the warp's first row, of one head of sequence b
    int lane;
    float *tiles[2], *block_own[2], *own[2], *weights;  // own: the block's and the warp's rows

    // There are T rows per head. The last rows come first: with a causal mask, the last queries
    // have the most work.
    __device__ ThreadPosition(int64_t T, int64_t heads) {
        DYNAMIC_SHARED(float, shared);
        const int64_t blocks = (T + block_rows - 1) / block_rows, index = blockIdx.x / blocks,
                      warp = threadIdx.x / 32;
        b = index / heads, head = index % heads,
        block_first = (blocks - 1 - blockIdx.x % blocks) * block_rows;
        first = block_first + warp * rows, lane = int(threadIdx.x) % 32;
        for (int i = 0; i < 2; ++i) {
            tiles[i] = shared + i * tile_size;
            block_own[i] = shared + 2 * tile_size + i * rows_size;
            own[i] = block_own[i] + warp * rows * stride;
        }
        weights = shared + 2 * tile_size + 2 * rows_size + warp * weights_size;
    }
};

// Copies rows of x, and of y unless it is null, to shared memory as fp32; columns from D on and
// rows from `present` on become zero.
template <int c, int rows, class T>
__device__ void stage(float* const (&to)[2], const T* x, const T* y, int64_t from_stride,
                      int64_t present, const Inputs<T>& in) {
    __syncthreads();  // until the previous contents have been read
    constexpr int packs = 32 * c / 4;
    const int D = int(in.s.D);
    const bool four = in.aligned && D % 4 == 0;  // elements in one access
    for (int index = threadIdx.x; index < rows * packs; index += threads) {
        const int row = index / packs, column = index % packs * 4;
        for (int i = 0; i < 2 && (i == 0 || y); ++i) {
            const T* from = (i == 0 ? x : y) + row * from_stride + column;
            Pack<float, 4> value = {};
            if (four && row < present && column < D) {
                const Pack<T, 4> pack = load<4>(from);
                for (int j = 0; j < 4; ++j) value.x[j] = to_float(pack.x[j]);
            } else {
                for (int j = 0; j < 4 && row < present && column + j < D; ++j)
                    value.x[j] = to_float(from[j]);
            }
            store(to[i] + row * ThreadPosition<c>::stride + column, value);
        }
    }
    __syncthreads();
}

// dot[r] = this lane's row of the tile times the warp's row r.
template <int c, int rows>
__device__ void dots(float (&dot)[rows], const float* tile, const float* own,
                     const ThreadPosition<c>& at, int64_t D) {
    for (int r = 0; r < rows; ++r) dot[r] = 0;
#pragma unroll 4
    for (int d = 0; d < int(D); d += 4) {
        const Pack<float, 4> a = load<4>(tile + at.lane * at.stride + d);
        for (int r = 0; r < rows; ++r) {
            const Pack<float, 4> b = load<4>(own + r * at.stride + d);  // the same for all lanes
            for (int j = 0; j < 4; ++j) dot[r] += a.x[j] * b.x[j];
        }
    }
}

// sum[r] += the tile's rows, each times its weight for the warp's row r. Lane l provides the
// weights of the tile's row l.
template <int c, int rows>
__device__ void accumulate(float (&sum)[rows][c], const float (&weight)[rows], const float* tile,
                           const ThreadPosition<c>& at) {
    __syncwarp();  // the previous call may still be reading the weights
    for (int r = 0; r < rows; ++r) at.weights[at.lane * rows + r] = weight[r];
    __syncwarp();
#pragma unroll 4
    for (int j = 0; j < tile_rows; ++j) {
        float w[rows];
        load_floats(w, at.weights + j * rows);
        for (int x = 0; x < c; ++x) {
            const float value = tile[j * at.stride + at.lane + 32 * x];
            for (int r = 0; r < rows; ++r) sum[r][x] += w[r] * value;
        }
    }
}

template <int c, class T>
__device__ void store_row(T* to, const float (&sum)[c], float factor, const ThreadPosition<c>& at,
                          int64_t D) {
    for (int x = 0; x < c; ++x)
        if (at.lane + 32 * x < D) to[at.lane + 32 * x] = from_float<T>(sum[x] * factor);
}

template <int c, class T>
__global__ void __launch_bounds__(threads) forward(T* o, float* lse, Inputs<T> in) {
    const ThreadPosition<c> at(in.s.Tq, in.s.H);
    constexpr int rows = at.rows;
    const AttentionSizes& s = in.s;
    const int64_t q_begin = (at.b * s.Tq * s.H + at.head) * s.D,
                  k_begin = (at.b * s.Tk * s.K + at.head / s.group()) * s.D;
    int begin[rows], end[rows];
    float highest[rows], sum[rows] = {}, out[rows][c] = {};  // sum: only of this lane's keys
    for (int r = 0; r < rows; ++r)
        in.mask.range(at.b, at.first + r, begin[r], end[r]), highest[r] = -INFINITY;
    const BlockRange range = in.mask.template block_range<at.block_rows>(at.b, at.block_first);
    stage<c, at.block_rows, T>(at.block_own, in.q + q_begin + at.block_first * s.q_row(), nullptr,
                               s.q_row(), s.Tq - at.block_first, in);
    for (int n = range.lowest_begin; n < range.highest_end; n += tile_rows) {
        const int64_t tile_begin = k_begin + n * s.k_row();
        stage<c, tile_rows>(at.tiles, in.k + tile_begin, in.v + tile_begin, s.k_row(), s.Tk - n,
                            in);
        const int key = n + at.lane;
        float p[rows];
        dots(p, at.tiles[0], at.own[0], at, s.D);
        for (int r = 0; r < rows; ++r) {
            const float score = key >= begin[r] && key < end[r] ? p[r] * s.scale() : -INFINITY;
            const float top = fmaxf(highest[r], warp_max(score));
            const float shift = top == -INFINITY ? 0 : top,
                        factor = expf(highest[r] - shift);  // no key so far: -inf - 0
            p[r] = expf(score - shift), highest[r] = top;
            sum[r] = sum[r] * factor + p[r];
            for (int x = 0; x < c; ++x) out[r][x] *= factor;
        }
        accumulate(out, p, at.tiles[1], at);
    }
    for (int r = 0; r < rows; ++r) {
        const float total = warp_sum(sum[r]);
        if (at.first + r >= s.Tq) continue;
        store_row(o + q_begin + (at.first + r) * s.q_row(), out[r], total > 0 ? 1 / total : 0.0f,
                  at, s.D);
        if (at.lane == 0)
            lse[(at.b * s.H + at.head) * s.Tq + at.first + r] =
                highest[r] + logf(total);  // no key: -inf + -inf
    }
}

// ---- backward: P = exp(scale S - lse), dP = dO V^T, dS = P * (dP - delta), and scale at the end -

// Computes dQ = dS K: the rows are queries, the tiles keys.
template <int c, class T>
__global__ void __launch_bounds__(threads) backward_queries(T* dq, Inputs<T> in) {
    const ThreadPosition<c> at(in.s.Tq, in.s.H);
    constexpr int rows = at.rows;
    const AttentionSizes& s = in.s;
    const int64_t q_begin = (at.b * s.Tq * s.H + at.head) * s.D,
                  k_begin = (at.b * s.Tk * s.K + at.head / s.group()) * s.D;
    int begin[rows], end[rows];
    float lse[rows], delta[rows], sum[rows][c] = {};
    for (int r = 0; r < rows; ++r) {
        in.mask.range(at.b, at.first + r, begin[r], end[r]);
        const int64_t index = (at.b * s.H + at.head) * s.Tq + min(at.first + r, s.Tq - 1);
        lse[r] = in.lse[index], delta[r] = in.delta[index];
    }
    const BlockRange range = in.mask.template block_range<at.block_rows>(at.b, at.block_first);
    const int64_t block_begin = q_begin + at.block_first * s.q_row();
    stage<c, at.block_rows>(at.block_own, in.q + block_begin, in.dout + block_begin, s.q_row(),
                            s.Tq - at.block_first, in);
    for (int n = range.lowest_begin; n < range.highest_end; n += tile_rows) {
        const int64_t tile_begin = k_begin + n * s.k_row();
        stage<c, tile_rows>(at.tiles, in.k + tile_begin, in.v + tile_begin, s.k_row(), s.Tk - n,
                            in);
        const int key = n + at.lane;
        float score[rows], ds[rows];
        dots(score, at.tiles[0], at.own[0], at, s.D);
        dots(ds, at.tiles[1], at.own[1], at, s.D);
        for (int r = 0; r < rows; ++r)
            ds[r] = key >= begin[r] && key < end[r]
                        ? expf(score[r] * s.scale() - lse[r]) * (ds[r] - delta[r])
                        : 0;
        accumulate(sum, ds, at.tiles[0], at);
    }
    for (int r = 0; r < rows; ++r)
        if (at.first + r < s.Tq)
            store_row(dq + q_begin + (at.first + r) * s.q_row(), sum[r], s.scale(), at, s.D);
}

// Computes dV = P^T dO and dK = dS^T Q: the rows are keys, the tiles queries of each of the heads
// that share these keys.
template <int c, class T>
__global__ void __launch_bounds__(threads) backward_keys(T* dk, T* dv, Inputs<T> in) {
    const ThreadPosition<c> at(in.s.Tk, in.s.K);
    constexpr int rows = at.rows;
    const AttentionSizes& s = in.s;
    const int64_t k_begin = (at.b * s.Tk * s.K + at.head) * s.D,
                  block_begin = k_begin + at.block_first * s.k_row();
    float dk_sum[rows][c] = {}, dv_sum[rows][c] = {};
    stage<c, at.block_rows>(at.block_own, in.k + block_begin, in.v + block_begin, s.k_row(),
                            s.Tk - at.block_first, in);
    const int query_end = in.mask.query_end(at.b, at.block_first + at.block_rows);
    for (int64_t h = at.head * s.group(); h < (at.head + 1) * s.group(); ++h)
        for (int64_t n = in.mask.first_query(at.block_first); n < query_end; n += tile_rows) {
            int begin, end;
            in.mask.range(at.b, n + at.lane, begin, end);
            const int64_t tile_begin = ((at.b * s.Tq + n) * s.H + h) * s.D;
            stage<c, tile_rows>(at.tiles, in.q + tile_begin, in.dout + tile_begin, s.q_row(),
                                s.Tq - n, in);
            const int64_t index = (at.b * s.H + h) * s.Tq + min(n + at.lane, s.Tq - 1);
            const float lse = in.lse[index], delta = in.delta[index];
            float p[rows], ds[rows];
            dots(p, at.tiles[0], at.own[0], at, s.D);
            dots(ds, at.tiles[1], at.own[1], at, s.D);
            for (int r = 0; r < rows; ++r) {
                const bool visible = at.first + r >= begin && at.first + r < end;
                p[r] = visible ? expf(p[r] * s.scale() - lse) : 0;
                ds[r] = visible ? p[r] * (ds[r] - delta) : 0;
            }
            accumulate(dv_sum, p, at.tiles[1], at);
            accumulate(dk_sum, ds, at.tiles[0], at);
        }
    for (int r = 0; r < rows; ++r)
        if (at.first + r < s.Tk) {
            store_row(dk + k_begin + (at.first + r) * s.k_row(), dk_sum[r], s.scale(), at, s.D);
            store_row(dv + k_begin + (at.first + r) * s.k_row(), dv_sum[r], 1, at, s.D);
        }
}

// Calls f(std::integral_constant<int, c>{}) with the c of Place.
template <int c = 1, class F>
void with_columns(int64_t D, F&& f) {
    check(D <= 256, "attention: a head dimension up to 256");
    if constexpr (c < 8)
        if (D > 32 * c) return with_columns<2 * c>(D, f);
    f(std::integral_constant<int, c>{});
}

}  // namespace

void attention_forward_plain(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k,
                             const Tensor& v, const AttentionSizes& s, const DeviceMask& mask,
                             bool aligned) {
    with_type(q.dtype(), [&]<class T>(T) {
        const Inputs<T> in = {data<T>(q), data<T>(k), data<T>(v), nullptr, nullptr,
                              nullptr,    s,          mask,       aligned};
        with_columns(s.D, [&]<int c>(std::integral_constant<int, c>) {
            LAUNCH((forward<c, T>), ThreadPosition<c>::blocks(s.Tq, s.B * s.H), threads,
                   ThreadPosition<c>::shared_bytes)
            (data<T>(o), lse.as<float>(), in);
        });
    });
}

void attention_backward_plain(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                              const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& lse, const Tensor& delta, const AttentionSizes& s,
                              const DeviceMask& mask, bool aligned) {
    with_type(q.dtype(), [&]<class T>(T) {
        const Inputs<T> in = {data<T>(q),      data<T>(k),        data<T>(v), data<T>(dout),
                              lse.as<float>(), delta.as<float>(), s,          mask,
                              aligned};
        with_columns(s.D, [&]<int c>(std::integral_constant<int, c>) {
            LAUNCH((backward_keys<c, T>), ThreadPosition<c>::blocks(s.Tk, s.B * s.K), threads,
                   ThreadPosition<c>::shared_bytes)
            (data<T>(dk), data<T>(dv), in);
            LAUNCH((backward_queries<c, T>), ThreadPosition<c>::blocks(s.Tq, s.B * s.H), threads,
                   ThreadPosition<c>::shared_bytes)
            (data<T>(dq), in);
        });
    });
}

}  // namespace ultrascale::ops
