// Before and after attention_wgmma_backward.cu: what its rows need, and dQ from the sums (attention_wgmma_sums.cuh).
#include "attention_wgmma_sums.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;

// The lengths of `count` rows of x, `step` rows apart, each from D / 8 neighbouring threads that read it; all have it. Rows from `end` on are
// none. Never too short: squares below 2^-149 become zero, for which there is `tiny`.
constexpr float tiny = 1e-20f;
template <int D, int count>
__device__ void row_lengths(float (&length)[count], const Element* x, int64_t row_elements, int64_t first, int step, int64_t end) {
    constexpr int lanes = D / 8;
    Pack<Element, 8> pack[count] = {};
#pragma unroll
    for (int i = 0; i < count; ++i)
        if (const int64_t row = first + i * step; row < end) pack[i] = load<8>(x + row * row_elements + int(threadIdx.x) % lanes * 8);
#pragma unroll
    for (int i = 0; i < count; ++i) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) sum += to_float(pack[i].x[j]) * to_float(pack[i].x[j]);
#pragma unroll
        for (int lane = lanes / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
        length[i] = sqrtf(sum) + tiny;
    }
}

// The longest rows of k and v (B, T, heads, D): each head's to longest (2, B, heads), as the float's bits, which are ordered as the numbers
// are, and a NaN's are above them. A block has rows<D> rows of one head.
constexpr int at_once = 4;
template <int D>
constexpr int rows = threads / (D / 8) * at_once;
template <int D>
__global__ void __launch_bounds__(threads) longest_rows(int* longest, const Element* k, const Element* v, int64_t T, int heads) {
    constexpr int lanes = D / 8;
    const int64_t blocks = (T + rows<D> - 1) / rows<D>, head = blockIdx.x / blocks, first = blockIdx.x % blocks * rows<D>;
    float length[at_once];
    row_lengths<D>(length, (blockIdx.y == 0 ? k : v) + (head / heads * T * heads + head % heads) * D, heads * D,
                   first + int(threadIdx.x) / lanes, threads / lanes, T);
    int highest = 0;
#pragma unroll
    for (const float x : length) highest = max(highest, __float_as_int(x) & INT_MAX);
    highest = __reduce_max_sync(0xffffffffu, highest);
    if (threadIdx.x % 32 == 0) atomicMax(&longest[blockIdx.y * (gridDim.x / blocks) + head], highest);
}

// A tile of queries a block.
template <int D>
__global__ void __launch_bounds__(threads) fill_rows(BackwardRows<D>* tiles, int4* sums, const Element* dout, const float* lse,
                                                     const float* delta, const int* longest, AttentionSizes s, DeviceMask mask) {
    constexpr int queries = backward_queries(D), lanes = D / 8;
    static_assert(rows<D> == queries);
    __shared__ float length[queries];
    __shared__ int highest_begin;
    const int64_t tiles_of_head = (s.Tq + queries - 1) / queries, head = blockIdx.x / tiles_of_head, b = head / s.H, h = head % s.H;
    const int first = int(blockIdx.x % tiles_of_head) * queries, thread = int(threadIdx.x);
    if (thread == 0) highest_begin = 0;
    float own[at_once];
    row_lengths<D>(own, dout + (b * s.Tq * s.H + h) * D, s.q_row(), first + thread / lanes, threads / lanes, s.Tq);
    if (thread % lanes == 0)
#pragma unroll
        for (int i = 0; i < at_once; ++i) length[thread / lanes + i * (threads / lanes)] = own[i];
    for (int i = thread; i < queries * D / 4; i += threads) sums[blockIdx.x * int64_t(queries * D / 4) + i] = {};
    __syncthreads();
    BackwardRows<D>& tile = tiles[blockIdx.x];
    if (thread < queries) {
        const int query = min(first + thread, int(s.Tq) - 1);
        const bool valid = query == first + thread;  // behind the last one Q and dO are zero, and so is all that comes of them
        const int64_t at = head * s.Tq + query, kv_head = head / s.group();
        const float bound =
            (length[thread] * __int_as_float(longest[s.B * s.K + kv_head]) + fabsf(delta[at])) * __int_as_float(longest[kv_head]);
        const int exponent = max(__float_as_int(bound) >> 23, 30);  // bound < 2^(exponent - 126)
        const int begin = mask.starts ? mask.starts[b * s.Tq + query] - int(mask.k_offset) : 0;
        tile.log2_sum[row_place(thread)] = valid ? log2_sum_of(lse[at]) : 0;
        tile.delta[row_place(thread)] = valid ? delta[at] : 0;
        tile.factor[thread] = bound < INFINITY && lse[at] < INFINITY ? __int_as_float((127 + 156 - exponent) << 23) : NAN;
        tile.begin[thread] = begin;
        atomicMax(&highest_begin, begin);
    }
    __syncthreads();
    if (thread == 0) {
        tile.highest_begin = highest_begin;
        tile.key_end = int(mask.causal ? min(max(mask.shift + first + 1, int64_t(-queries)), mask.Tk) : mask.Tk);
    }
}

// A thread has eight columns, j of a tile, of the rows g and g + 8 of a warp: the sums of four lanes, 64 bytes. A block has a tile.
template <int D>
__global__ void __launch_bounds__(threads) to_dq(Element* dq, const int4* sums, const BackwardRows<D>* rows, AttentionSizes s) {
    constexpr int queries = backward_queries(D), parts = D / 64, tiles = queries * D / dq_tile;
    const BackwardRows<D>& tile = rows[blockIdx.x / tiles];
    const int64_t tiles_of_head = (s.Tq + queries - 1) / queries, head = blockIdx.x / tiles / tiles_of_head;
    const int j = int(threadIdx.x) % 8, g = int(threadIdx.x) / 8 % 8, warp = int(threadIdx.x) / 64;
    const int part = int(blockIdx.x) % parts, row = int(blockIdx.x) % tiles / parts * 64 + 16 * warp + g;
    const int first = int(blockIdx.x / tiles % tiles_of_head) * queries;
    const int4* const from = sums + int64_t(blockIdx.x) * (dq_tile / 4) + warp * (dq_of_warp / 4) + j * 32 + g * 4;
    int4 four[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) four[t] = from[t];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int64_t query = first + row + 8 * r;
        if (query >= s.Tq) continue;
        const float factor = s.scale() / tile.factor[row + 8 * r];
        Pack<Element, 8> pack;
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            pack.x[2 * t] = from_float<Element>(float(r == 0 ? four[t].x : four[t].z) * factor);
            pack.x[2 * t + 1] = from_float<Element>(float(r == 0 ? four[t].y : four[t].w) * factor);
        }
        store(dq + ((head / s.H * s.Tq + query) * s.H + head % s.H) * D + part * 64 + j * 8, pack);
    }
}

template <int D>
BackwardSums begin_sums(const Tensor& dout, const Tensor& k, const Tensor& v, const Tensor& lse, const Tensor& delta,
                        const AttentionSizes& s, const DeviceMask& mask) {
    constexpr int queries = backward_queries(D);
    const int64_t tiles = s.B * s.H * ceil_div(s.Tq, queries);
    const Tensor longest = Tensor::zeros({2, s.B, s.K}, DType::int32, Memory::workspace);
    LAUNCH(longest_rows<D>, dim3(unsigned(ceil_div(s.Tk, rows<D>) * s.B * s.K), 2), threads, 0)
    (data<int>(longest), data<Element>(k), data<Element>(v), s.Tk, int(s.K));
    const BackwardSums out = {Tensor::empty({tiles, int64_t(sizeof(BackwardRows<D>) / 4)}, DType::int32, Memory::workspace),
                              Tensor::empty({tiles, queries, D}, DType::int32, Memory::workspace)};
    LAUNCH(fill_rows<D>, unsigned(tiles), threads, 0)
    (reinterpret_cast<BackwardRows<D>*>(out.rows.data()), reinterpret_cast<int4*>(out.sums.data()), data<Element>(dout), data<float>(lse),
     data<float>(delta), data<int>(longest), s, mask);
    return out;
}
template <int D>
void finish_sums(const Tensor& dq, const BackwardSums& sums, const AttentionSizes& s) {
    LAUNCH(to_dq<D>, unsigned(sums.sums.numel() / dq_tile), threads, 0)
    (data<Element>(dq), reinterpret_cast<const int4*>(sums.sums.data()), reinterpret_cast<const BackwardRows<D>*>(sums.rows.data()), s);
}

}  // namespace

BackwardSums backward_sums(const Tensor& dout, const Tensor& k, const Tensor& v, const Tensor& lse, const Tensor& delta,
                           const AttentionSizes& s, const DeviceMask& mask) {
    return (s.D == 64 ? begin_sums<64> : begin_sums<128>)(dout, k, v, lse, delta, s, mask);
}
void dq_from_sums(const Tensor& dq, const BackwardSums& sums, const AttentionSizes& s) {
    (s.D == 64 ? finish_sums<64> : finish_sums<128>)(dq, sums, s);
}

}  // namespace ultrascale::ops
