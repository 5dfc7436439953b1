// Before and after attention_wgmma_backward.cu: the lengths of rows that bound dQ's sums, and dQ from these (attention_wgmma_sums.cuh).
#include "attention_wgmma_sums.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;

// Lengths of the rows of x (B, T, heads, D), to norms (B, heads, T) or, of each head the highest, to highest (B, heads); never too low:
// squares below 2^-149 become zero, which `tiny` makes up for. A block has `rows` rows of one head.
constexpr int rows = 256;
constexpr float tiny = 1e-20f;
template <int D>
__global__ void __launch_bounds__(threads) row_norms(const Element* x, int64_t T, int heads, float* norms, int* highest) {
    constexpr int lanes = D / 8;  // of a row: 16 bytes each
    const int64_t blocks = (T + rows - 1) / rows, head = blockIdx.x / blocks, first = blockIdx.x % blocks * rows;
    const int64_t b = head / heads, h = head % heads;
    float longest = 0;
    for (int i = int(threadIdx.x) / lanes; i < rows; i += threads / lanes) {
        const int64_t row = first + i;
        float sum = 0;
        if (row < T) {
            const Pack<Element, 8> pack = load<8>(x + ((b * T + row) * heads + h) * D + int(threadIdx.x) % lanes * 8);
#pragma unroll
            for (int j = 0; j < 8; ++j) sum += to_float(pack.x[j]) * to_float(pack.x[j]);
        }
#pragma unroll
        for (int lane = lanes / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
        const float norm = sqrtf(sum) + tiny;
        longest = norm > longest || norm != norm ? norm : longest;  // a NaN stays: it is greater than no number, and as bits than all
        if (norms && row < T && int(threadIdx.x) % lanes == 0) norms[head * T + row] = norm;
    }
    const int bits = __reduce_max_sync(0xffffffffu, __float_as_int(longest) & INT_MAX);
    if (highest && threadIdx.x % 32 == 0) atomicMax(&highest[head], bits);
}

// A thread has eight columns, j of a tile, of the rows g and g + 8 of a warp: the sums of four lanes, 64 bytes.
template <int D>
__global__ void __launch_bounds__(threads) dq_from_sums(Element* dq, DqSums sums, const float* lse, const float* delta, AttentionSizes s) {
    constexpr int parts = D / 64;
    const int64_t tile = blockIdx.x / parts, head = tile / sums.tiles;
    const int part = int(blockIdx.x % parts), query = int(tile % sums.tiles) * 64;
    const int j = int(threadIdx.x) % 8, g = int(threadIdx.x) / 8 % 8, warp = int(threadIdx.x) / 64;
    const int4* const from = reinterpret_cast<const int4*>(sums.tile(head, query, part, parts) + warp * dq_of_warp) + j * 32 + g * 4;
    int4 four[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) four[t] = from[t];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = query + 16 * warp + g + 8 * r;
        if (row >= s.Tq) continue;
        const int64_t at = head * s.Tq + row, b = head / s.H, h = head % s.H;
        const float factor = dq_factor(sums, at, b * s.K + h / s.group(), lse[at], delta[at], -1) * s.scale();
        Pack<Element, 8> pack;
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            pack.x[2 * t] = from_float<Element>(float(r == 0 ? four[t].x : four[t].z) * factor);
            pack.x[2 * t + 1] = from_float<Element>(float(r == 0 ? four[t].y : four[t].w) * factor);
        }
        store(dq + ((b * s.Tq + row) * s.H + h) * D + part * 64 + j * 8, pack);
    }
}

template <int D>
void launch_norms(const Tensor& x, float* norms, int* highest) {
    const int64_t B = x.size(0), T = x.size(1), heads = x.size(2);
    LAUNCH(row_norms<D>, unsigned(ceil_div(T, rows) * B * heads), threads, 0)(data<Element>(x), T, int(heads), norms, highest);
}
template <int D>
void launch_bounds(const DqSums& sums, const Tensor& dout, const Tensor& k, const Tensor& v) {
    launch_norms<D>(dout, sums.dout_norms, nullptr);
    launch_norms<D>(k, nullptr, sums.highest_k);
    launch_norms<D>(v, nullptr, sums.highest_v);
}
template <int D>
void launch_result(const Tensor& dq, const DqSums& sums, const Tensor& lse, const Tensor& delta, const AttentionSizes& s) {
    LAUNCH(dq_from_sums<D>, unsigned(s.B * s.H * sums.tiles * (D / 64)), threads, 0)
    (data<Element>(dq), sums, data<float>(lse), data<float>(delta), s);
}

}  // namespace

void dq_bounds(const DqSums& sums, const Tensor& dout, const Tensor& k, const Tensor& v, const AttentionSizes& s) {
    (s.D == 64 ? launch_bounds<64> : launch_bounds<128>)(sums, dout, k, v);
}
void dq_result(const Tensor& dq, const DqSums& sums, const Tensor& lse, const Tensor& delta, const AttentionSizes& s) {
    (s.D == 64 ? launch_result<64> : launch_result<128>)(dq, sums, lse, delta, s);
}

}  // namespace ultrascale::ops
