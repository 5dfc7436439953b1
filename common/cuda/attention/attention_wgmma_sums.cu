// Runs before and after attention_wgmma_backward.cu: fills BackwardRows, and computes dQ from the
// sums (attention_wgmma_sums.cuh).
#include "attention_wgmma_sums.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;

// The length of a row of D numbers, of which each of D / 8 neighbouring threads holds 8; each of
// them gets the result. It must never be too small: `tiny` compensates for squares below 2^-149,
// which become zero.
constexpr float tiny = 1e-20f;
template <int D>
__device__ float row_length(const Pack<Element, 8>& pack) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += to_float(pack.x[j]) * to_float(pack.x[j]);
#pragma unroll
    for (int lane = D / 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    return sqrtf(sum) + tiny;
}

// Raises longest_k and longest_v (B, heads) to the length of each head's longest row of k and v (B,
// T, heads, D), as the bits of a float: these are ordered like the numbers, with NaN above all. A
// block handles `tokens` tokens of one sequence with all their heads, which are contiguous in
// memory.
constexpr int tokens = 16, at_once = 4;
template <int D>
__global__ void __launch_bounds__(threads)
    longest_rows(int* longest_k, int* longest_v, const Element* k, const Element* v, int64_t T,
                 int heads) {
    constexpr int lanes = D / 8, groups = threads / lanes;
    DYNAMIC_SHARED(int, by_head);
    const int64_t blocks = (T + tokens - 1) / tokens, b = blockIdx.x / blocks,
                  first = blockIdx.x % blocks * tokens;
    const Element* const x =
        (blockIdx.y == 0 ? k : v) + (b * T + first) * heads * D + int(threadIdx.x) % lanes * 8;
    const int rows = int(min(T - first, int64_t(tokens))) * heads, group = int(threadIdx.x) / lanes;
    for (int h = int(threadIdx.x); h < heads; h += threads) by_head[h] = 0;
    __syncthreads();
    for (int i = 0; i < rows; i += groups * at_once) {
        Pack<Element, 8> pack[at_once] = {};
#pragma unroll
        for (int u = 0; u < at_once; ++u)
            if (const int row = i + u * groups + group; row < rows)
                pack[u] = load<8>(x + int64_t(row) * D);
#pragma unroll
        for (int u = 0; u < at_once; ++u) {
            const int bits = __float_as_int(row_length<D>(pack[u])) & INT_MAX;
            if (int(threadIdx.x) % lanes == 0)
                // Without any row it is tiny.
                atomicMax(&by_head[(i + u * groups + group) % heads], bits);
        }
    }
    __syncthreads();
    for (int h = int(threadIdx.x); h < heads; h += threads)
        atomicMax(&(blockIdx.y == 0 ? longest_k : longest_v)[b * heads + h], by_head[h]);
}

// The factor for a bound: bound < 2^(exponent - 126), and the factor is 2^(156 - exponent).
__device__ float factor_for(float bound) {
    const int exponent = max(__float_as_int(bound) >> 23, 30);
    return bound < INFINITY ? __int_as_float((127 + 156 - exponent) << 23) : NAN;
}

// A sum without the rounded_zeros that were added to it.
__device__ int without_zeros(int sum, int tiles_added) {
    return int(unsigned(sum) - unsigned(rounded_zero) * unsigned(tiles_added));
}

// Divides the sums of a tile by 2^shift[row], rounded.
template <int D>
__device__ void divide_sums(int4* sums, const int* shift, int tiles_added) {
    const auto divided = [&](int sum, int by) {
        const int64_t x = without_zeros(sum, tiles_added);
        return int((x + (int64_t(1) << by >> 1)) >> by);
    };
    for (int i = int(threadIdx.x); i < backward_queries(D) * D / 4; i += threads) {
        // The layout is described above dq_tile.
        const int tile = i / (dq_tile / 4) / (D / 64), warp = i / (dq_of_warp / 4) % 4,
                  row = 64 * tile + 16 * warp + i % 32 / 4;
        const int low = min(shift[row], 32), high = min(shift[row + 8], 32);
        const int4 x = sums[i];
        sums[i] = {divided(x.x, low), divided(x.y, low), divided(x.z, high), divided(x.w, high)};
    }
}

// Each block of threads handles a tile of queries. `opens`: it sets the sums to zero, and writes
// the numbers that concern only the queries. `block`: it prepares the sums for a block of keys.
template <int D, bool opens, bool block>
__global__ void __launch_bounds__(threads)
    fill_rows(OpenTiles<D> open, const Element* dout, const float* lse, const float* delta,
              const int* longest_k, const int* longest_v, AttentionSizes s, DeviceMask mask) {
    constexpr int queries = backward_queries(D), lanes = D / 8;
    __shared__ float length[queries];
    __shared__ int highest_begin, shift[queries];
    const int64_t tiles_of_head = (s.Tq + queries - 1) / queries, head = blockIdx.x / tiles_of_head,
                  b = head / s.H, h = head % s.H;
    const int64_t tile_number = head * open.head_stride + blockIdx.x % tiles_of_head;
    const int first = int(blockIdx.x % tiles_of_head) * queries, thread = int(threadIdx.x);
    BackwardRows<D>& tile = open.rows[tile_number];
    int4* const sums = reinterpret_cast<int4*>(open.sums) + tile_number * (queries * D / 4);
    if constexpr (opens) {
        const Element* const x = dout + ((b * s.Tq + first) * s.H + h) * D + thread % lanes * 8;
        constexpr int groups = threads / lanes;
        Pack<Element, 8> pack[queries / groups] = {};
#pragma unroll
        for (int i = 0; i < queries / groups; ++i)
            if (const int row = i * groups + thread / lanes; first + row < s.Tq)
                pack[i] = load<8>(x + row * s.q_row());
        for (int i = thread; i < queries * D / 4; i += threads) sums[i] = {};
#pragma unroll
        for (int i = 0; i < queries / groups; ++i) {
            const float found = row_length<D>(pack[i]);
            if (thread % lanes == 0) length[i * groups + thread / lanes] = found;
        }
    }
    if (thread == 0) highest_begin = 0;
    __syncthreads();
    const int tiles_added = opens ? 0 : tile.tiles_added;
    bool divide = false;
    if (thread < queries) {
        const int index = row_index(thread), query = min(first + thread, int(s.Tq) - 1);
        if constexpr (opens) {
            // After the last query Q and dO are zero, and so are all results from them.
            const bool valid = query == first + thread;
            const int64_t at = head * s.Tq + query;
            tile.log2_sum[index] = valid ? log2_sum_of(lse[at]) : 0;
            tile.delta[index] = valid ? delta[at] : 0;
            tile.factor[thread] = lse[at] < INFINITY ? factor_for(0) : NAN;
            open.lengths[tile_number * queries + thread] = length[thread];
        }
        if constexpr (block) {
            const int64_t kv_head = head / s.group();
            const float bound =
                (open.lengths[tile_number * queries + thread] * __int_as_float(longest_v[kv_head]) +
                 fabsf(tile.delta[index])) *
                __int_as_float(longest_k[kv_head]);
            const float before = tile.factor[thread],
                        factor = isnan(before) ? before : factor_for(bound);
            shift[thread] =
                isnan(factor) ? 0 : (__float_as_int(before) - __float_as_int(factor)) >> 23;
            divide = tiles_added > 0 && shift[thread] > 0;
            tile.factor[thread] = factor;
            const int begin = mask.starts ? mask.starts[b * s.Tq + query] - int(mask.k_offset) : 0;
            tile.begin[thread] = begin;
            atomicMax(&highest_begin, begin);
        }
    }
    if constexpr (!block) {
        if (thread == 0) tile.tiles_added = 0;
    } else {
        divide = __syncthreads_or(divide);
        if (!opens && divide) divide_sums<D>(sums, shift, tiles_added);
        if (thread == 0) {
            tile.tiles_added =
                (divide ? 0 : tiles_added) + key_tiles_of(b, first / queries, queries, mask);
            tile.highest_begin = highest_begin;
            tile.key_end =
                int(mask.causal ? min(max(mask.shift + first + 1, int64_t(-queries)), mask.Tk)
                                : mask.Tk);
        }
    }
}

// Each block handles a tile of sums. A thread converts eight columns (column tile j) of a warp's
// rows g and g + 8: the sums of four lanes, 64 bytes.
template <int D, class Out>
__global__ void __launch_bounds__(threads)
    to_dq(Out* dq, const int4* sums, const BackwardRows<D>* rows, AttentionSizes s,
          const float* addend) {
    constexpr int queries = backward_queries(D), parts = D / 64, tiles = queries * D / dq_tile;
    const BackwardRows<D>& tile = rows[blockIdx.x / tiles];
    const int64_t tiles_of_head = (s.Tq + queries - 1) / queries,
                  head = blockIdx.x / tiles / tiles_of_head;
    const int j = int(threadIdx.x) % 8, g = int(threadIdx.x) / 8 % 8, warp = int(threadIdx.x) / 64;
    const int part = int(blockIdx.x) % parts,
              row = int(blockIdx.x) % tiles / parts * 64 + 16 * warp + g;
    const int first = int(blockIdx.x / tiles % tiles_of_head) * queries;
    const int4* const from =
        sums + int64_t(blockIdx.x) * (dq_tile / 4) + warp * (dq_of_warp / 4) + j * 32 + g * 4;
    int4 four[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) four[t] = from[t];
    const int tiles_added = tile.tiles_added;
    const auto number = [&](int sum) { return float(without_zeros(sum, tiles_added)); };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int64_t query = first + row + 8 * r;
        if (query >= s.Tq) continue;
        const float factor = s.scale() / tile.factor[row + 8 * r];
        float sum[8];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            sum[2 * t] = number(r == 0 ? four[t].x : four[t].z) * factor;
            sum[2 * t + 1] = number(r == 0 ? four[t].y : four[t].w) * factor;
        }
        const int64_t at = ((head / s.H * s.Tq + query) * s.H + head % s.H) * D + part * 64 + j * 8;
        store_sums(dq + at, sum, addend ? addend + at : nullptr);
    }
}

template <int D>
using Head = std::integral_constant<int, D>;
template <class With>
void with_head(int64_t D, With with) {
    D == 64 ? with(Head<64>()) : with(Head<128>());
}

OpenDq new_open_dq(const Tensor& dout, int64_t K, Memory category) {
    const int64_t B = dout.size(0), T = dout.size(1), H = dout.size(2), D = dout.size(3),
                  queries = backward_queries(int(D)), tiles = B * H * ceil_div(T, queries),
                  row_bytes = D == 64 ? sizeof(BackwardRows<64>) : sizeof(BackwardRows<128>);
    return {Tensor::empty({tiles, queries, D}, DType::int32, category),
            Tensor::empty({tiles, row_bytes / 4}, DType::int32, Memory::workspace),
            Tensor::empty({tiles, queries}, DType::fp32, Memory::workspace),
            Tensor::zeros({2, B, K}, DType::int32, Memory::workspace), T};
}

template <bool opens, bool block>
void fill(const OpenDq& open, int64_t b, int64_t first, const Tensor& dout, const Tensor& lse,
          const Tensor& delta, const Tensor& k, const Tensor& v, const AttentionSizes& s,
          const DeviceMask& mask) {
    int* const longest_k = open.longest.as<int32_t>() + b * s.K;
    int* const longest_v = longest_k + open.longest.numel() / 2;
    with_head(s.D, [&]<int D>(Head<D>) {
        if constexpr (block) {
            LAUNCH(longest_rows<D>, dim3(unsigned(ceil_div(s.Tk, tokens) * s.B), 2), threads,
                   size_t(s.K) * sizeof(int))
            (longest_k, longest_v, data<Element>(k), data<Element>(v), s.Tk, int(s.K));
        }
        LAUNCH((fill_rows<D, opens, block>),
               unsigned(s.B * s.H * ceil_div(s.Tq, backward_queries(D))), threads, 0)
        (OpenTiles<D>(open, b, first, s.H), static_cast<const Element*>(dout.data()),
         static_cast<const float*>(lse.data()), static_cast<const float*>(delta.data()), longest_k,
         longest_v, s, mask);
    });
}

}  // namespace

OpenDq open_with_block(const Tensor& dout, const Tensor& lse, const Tensor& delta, const Tensor& k,
                       const Tensor& v, const AttentionSizes& s, const DeviceMask& mask) {
    const OpenDq open = new_open_dq(dout, s.K, Memory::workspace);
    fill<true, true>(open, 0, 0, dout, lse, delta, k, v, s, mask);
    return open;
}
OpenDq open_dq_wgmma(const Tensor& dout, const Tensor& lse, const Tensor& delta, int64_t K) {
    AttentionSizes s = attention_sizes(dout, dout, dout);
    s.K = K;
    const OpenDq open = new_open_dq(dout, K, Memory::activation);
    fill<true, false>(open, 0, 0, dout, lse, delta, {}, {}, s, DeviceMask{});
    return open;
}
void next_block(const OpenDq& open, int64_t b, int64_t first, const Tensor& k, const Tensor& v,
                const AttentionSizes& s, const DeviceMask& mask) {
    fill<false, true>(open, b, first, {}, {}, {}, k, v, s, mask);
}
void close_dq_wgmma(const Tensor& dq, const OpenDq& open, const Tensor& addend) {
    const AttentionSizes s = attention_sizes(dq, dq, dq);
    with_head(s.D, [&]<int D>(Head<D>) {
        with_type(dq.dtype(), [&]<class Out>(Out) {
            LAUNCH((to_dq<D, Out>), unsigned(open.sums.numel() / dq_tile), threads, 0)
            (data<Out>(dq), reinterpret_cast<const int4*>(open.sums.data()),
             reinterpret_cast<const BackwardRows<D>*>(open.rows.data()), s,
             static_cast<const float*>(addend.data()));
        });
    });
}

}  // namespace ultrascale::ops
