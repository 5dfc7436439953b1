// What runs before and after attention_wgmma_backward.cu: it fills BackwardRows, and computes dQ
// from the sums (attention_wgmma_sums.cuh).
#include "attention_wgmma_sums.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;

// The length of a row of D numbers, of which each of D / 8 neighbouring threads holds 8; each of
// them gets the result. It must never be too small: `tiny` makes up for squares below 2^-149, which
// become zero.
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

// Writes the length of each head's longest row of k and v (B, T, heads, D) to longest (2, B,
// heads), as the bits of a float: these are ordered like the numbers, with NaN above all. A block
// handles `tokens` tokens of one sequence with all their heads, which are contiguous in memory.
constexpr int tokens = 16, at_once = 4;
template <int D>
__global__ void __launch_bounds__(threads)
    longest_rows(int* longest, const Element* k, const Element* v, int64_t T, int heads) {
    constexpr int lanes = D / 8, groups = threads / lanes;
    DYNAMIC_SHARED(int, of_head);
    const int64_t blocks = (T + tokens - 1) / tokens, b = blockIdx.x / blocks,
                  first = blockIdx.x % blocks * tokens;
    const Element* const x =
        (blockIdx.y == 0 ? k : v) + (b * T + first) * heads * D + int(threadIdx.x) % lanes * 8;
    const int rows = int(min(T - first, int64_t(tokens))) * heads, group = int(threadIdx.x) / lanes;
    for (int h = int(threadIdx.x); h < heads; h += threads) of_head[h] = 0;
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
                // if there is no row: tiny
                atomicMax(&of_head[(i + u * groups + group) % heads], bits);
        }
    }
    __syncthreads();
    for (int h = int(threadIdx.x); h < heads; h += threads)
        atomicMax(&longest[(blockIdx.y * (gridDim.x / blocks) + b) * heads + h], of_head[h]);
}

// Each block handles a tile of queries.
template <int D>
__global__ void __launch_bounds__(threads)
    fill_rows(BackwardRows<D>* tiles, int4* sums, const Element* dout, const float* lse,
              const float* delta, const int* longest, AttentionSizes s, DeviceMask mask) {
    constexpr int queries = backward_queries(D), lanes = D / 8;
    __shared__ float length[queries];
    __shared__ int highest_begin;
    const int64_t tiles_of_head = (s.Tq + queries - 1) / queries, head = blockIdx.x / tiles_of_head,
                  b = head / s.H, h = head % s.H;
    const int first = int(blockIdx.x % tiles_of_head) * queries, thread = int(threadIdx.x);
    if (thread == 0) highest_begin = 0;
    const Element* const x = dout + ((b * s.Tq + first) * s.H + h) * D + thread % lanes * 8;
    constexpr int groups = threads / lanes;
    Pack<Element, 8> pack[queries / groups] = {};
#pragma unroll
    for (int i = 0; i < queries / groups; ++i)
        if (const int row = i * groups + thread / lanes; first + row < s.Tq)
            pack[i] = load<8>(x + row * s.q_row());
    for (int i = thread; i < queries * D / 4; i += threads)
        sums[blockIdx.x * int64_t(queries * D / 4) + i] = {};
#pragma unroll
    for (int i = 0; i < queries / groups; ++i) {
        const float found = row_length<D>(pack[i]);
        if (thread % lanes == 0) length[i * groups + thread / lanes] = found;
    }
    __syncthreads();
    BackwardRows<D>& tile = tiles[blockIdx.x];
    if (thread < queries) {
        const int query = min(first + thread, int(s.Tq) - 1);
        // after the last query Q and dO are zero, and so is everything computed from them
        const bool valid = query == first + thread;
        const int64_t at = head * s.Tq + query, kv_head = head / s.group();
        const float bound =
            (length[thread] * __int_as_float(longest[s.B * s.K + kv_head]) + fabsf(delta[at])) *
            __int_as_float(longest[kv_head]);
        const int exponent = max(__float_as_int(bound) >> 23, 30);  // bound < 2^(exponent - 126)
        const int begin = mask.starts ? mask.starts[b * s.Tq + query] - int(mask.k_offset) : 0;
        tile.log2_sum[row_place(thread)] = valid ? log2_sum_of(lse[at]) : 0;
        tile.delta[row_place(thread)] = valid ? delta[at] : 0;
        tile.factor[thread] = bound < INFINITY && lse[at] < INFINITY
                                  ? __int_as_float((127 + 156 - exponent) << 23)
                                  : NAN;
        tile.begin[thread] = begin;
        atomicMax(&highest_begin, begin);
    }
    __syncthreads();
    if (thread == 0) {
        tile.highest_begin = highest_begin;
        tile.key_end = int(
            mask.causal ? min(max(mask.shift + first + 1, int64_t(-queries)), mask.Tk) : mask.Tk);
    }
}

// Stores neighbouring numbers, plus those at `addend` if it is not null. Addresses are multiples of
// 16 bytes in fp32, of 2 n in bf16.
template <int n, class Out>
__device__ void store_sums(Out* to, float (&sum)[n], const float* addend) {
    if (addend) {
        float more[n];
        load_floats(more, addend);
#pragma unroll
        for (int j = 0; j < n; ++j) sum[j] += more[j];
    }
    if constexpr (std::is_same_v<Out, float>) {
        store_floats(to, sum);
    } else {
        Pack<Out, n> pack;
#pragma unroll
        for (int j = 0; j < n; ++j) pack.x[j] = from_float<Out>(sum[j]);
        store(to, pack);
    }
}

// Each block handles a tile of sums. A thread converts eight columns (column tile j) of a warp's
// rows g and g + 8: the sums of four lanes, 64 bytes.
template <int D, class Out>
__global__ void __launch_bounds__(threads)
    to_dq(Out* dq, const int4* sums, const BackwardRows<D>* rows, AttentionSizes s, DeviceMask mask,
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
    const unsigned zero =
        unsigned(rounded_zero) * unsigned(key_tiles_of(first / queries, queries, mask));
    const auto without_zero = [&](int sum) { return float(int(unsigned(sum) - zero)); };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int64_t query = first + row + 8 * r;
        if (query >= s.Tq) continue;
        const float factor = s.scale() / tile.factor[row + 8 * r];
        float sum[8];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            sum[2 * t] = without_zero(r == 0 ? four[t].x : four[t].z) * factor;
            sum[2 * t + 1] = without_zero(r == 0 ? four[t].y : four[t].w) * factor;
        }
        const int64_t at = ((head / s.H * s.Tq + query) * s.H + head % s.H) * D + part * 64 + j * 8;
        store_sums(dq + at, sum, addend ? addend + at : nullptr);
    }
}

template <int D>
BackwardSums begin_sums(const Tensor& dout, const Tensor& k, const Tensor& v, const Tensor& lse,
                        const Tensor& delta, const AttentionSizes& s, const DeviceMask& mask) {
    constexpr int queries = backward_queries(D);
    const int64_t tiles = s.B * s.H * ceil_div(s.Tq, queries);
    const Tensor longest = Tensor::zeros({2, s.B, s.K}, DType::int32, Memory::workspace);
    LAUNCH(longest_rows<D>, dim3(unsigned(ceil_div(s.Tk, tokens) * s.B), 2), threads,
           size_t(s.K) * sizeof(int))
    (data<int>(longest), data<Element>(k), data<Element>(v), s.Tk, int(s.K));
    const BackwardSums out = {Tensor::empty({tiles, int64_t(sizeof(BackwardRows<D>) / 4)},
                                            DType::int32, Memory::workspace),
                              Tensor::empty({tiles, queries, D}, DType::int32, Memory::workspace)};
    LAUNCH(fill_rows<D>, unsigned(tiles), threads, 0)
    (reinterpret_cast<BackwardRows<D>*>(out.rows.data()), reinterpret_cast<int4*>(out.sums.data()),
     data<Element>(dout), data<float>(lse), data<float>(delta), data<int>(longest), s, mask);
    return out;
}
template <int D>
void finish_sums(const Tensor& dq, const BackwardSums& sums, const AttentionSizes& s,
                 const DeviceMask& mask, const Tensor& addend) {
    with_type(dq.dtype(), [&]<class Out>(Out) {
        LAUNCH((to_dq<D, Out>), unsigned(sums.sums.numel() / dq_tile), threads, 0)
        (data<Out>(dq), reinterpret_cast<const int4*>(sums.sums.data()),
         reinterpret_cast<const BackwardRows<D>*>(sums.rows.data()), s, mask,
         static_cast<const float*>(addend.data()));
    });
}

}  // namespace

BackwardSums backward_sums(const Tensor& dout, const Tensor& k, const Tensor& v, const Tensor& lse,
                           const Tensor& delta, const AttentionSizes& s, const DeviceMask& mask) {
    return (s.D == 64 ? begin_sums<64> : begin_sums<128>)(dout, k, v, lse, delta, s, mask);
}
void dq_from_sums(const Tensor& dq, const BackwardSums& sums, const AttentionSizes& s,
                  const DeviceMask& mask, const Tensor& addend) {
    (s.D == 64 ? finish_sums<64> : finish_sums<128>)(dq, sums, s, mask, addend);
}

}  // namespace ultrascale::ops
