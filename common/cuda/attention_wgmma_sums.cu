// Before and after attention_wgmma_backward.cu: the lengths of rows that bound dQ's sums, and dQ from these (attention_wgmma_sums.cuh).
#include "attention_wgmma_sums.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;

// What dO's rows need for their factors.
struct RowBounds {
    float* factors;                    // (B, H, Tq)
    const float *lse, *delta;          // likewise
    const int *longest_k, *longest_v;  // (B, K)
    __device__ float factor(int64_t row, int64_t kv_head, float norm) const {
        const float bound = (norm * __int_as_float(longest_v[kv_head]) + fabsf(delta[row])) * __int_as_float(longest_k[kv_head]);
        if (!(bound < INFINITY && lse[row] < INFINITY)) return NAN;
        const int exponent = max(__float_as_int(bound) >> 23, 30);  // bound < 2^(exponent - 126)
        return __int_as_float((127 + 156 - exponent) << 23);
    }
};

// Lengths of the rows of x (B, T, heads, D): the longest of each head to longest (B, heads), as the float's bits, which are ordered as the
// numbers are, and a NaN's are above them; or a factor from each. Never too short: squares below 2^-149 become zero, for which there is
// `tiny`. A block has `rows` rows of one head.
constexpr int rows = 256;
constexpr float tiny = 1e-20f;
template <int D>
__global__ void __launch_bounds__(threads) row_norms(const Element* x, int64_t T, int heads, int group, int* longest, RowBounds bounds) {
    constexpr int lanes = D / 8;  // of a row: 16 bytes each
    const int64_t blocks = (T + rows - 1) / rows, head = blockIdx.x / blocks, first = blockIdx.x % blocks * rows;
    const int64_t b = head / heads, h = head % heads;
    int highest = 0;
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
        highest = max(highest, __float_as_int(norm) & INT_MAX);
        if (!longest && row < T && int(threadIdx.x) % lanes == 0)
            bounds.factors[head * T + row] = bounds.factor(head * T + row, head / group, norm);
    }
    highest = __reduce_max_sync(0xffffffffu, highest);
    if (longest && threadIdx.x % 32 == 0) atomicMax(&longest[head], highest);
}

// A thread has eight columns, j of a tile, of the rows g and g + 8 of a warp: the sums of four lanes, 64 bytes.
template <int D>
__global__ void __launch_bounds__(threads) dq_from_sums(Element* dq, DqSums sums, AttentionSizes s) {
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
        const float factor = s.scale() / sums.factors[at];
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
void launch_norms(const Tensor& x, int64_t group, int* longest, const RowBounds& bounds) {
    const int64_t B = x.size(0), T = x.size(1), heads = x.size(2);
    LAUNCH(row_norms<D>, unsigned(ceil_div(T, rows) * B * heads), threads, 0)
    (data<Element>(x), T, int(heads), int(group), longest, bounds);
}

}  // namespace

Tensor dq_factors(const Tensor& dout, const Tensor& k, const Tensor& v, const Tensor& lse, const Tensor& delta, const AttentionSizes& s) {
    const Tensor factors = Tensor::empty({s.B, s.H, s.Tq}, DType::fp32, Memory::workspace);
    const Tensor longest = Tensor::zeros({2, s.B, s.K}, DType::int32, Memory::workspace);
    int *const longest_k = data<int>(longest), *const longest_v = longest_k + s.B * s.K;
    const auto norms = s.D == 64 ? launch_norms<64> : launch_norms<128>;
    norms(k, 1, longest_k, {});
    norms(v, 1, longest_v, {});
    norms(dout, s.group(), nullptr, {data<float>(factors), data<float>(lse), data<float>(delta), longest_k, longest_v});
    return factors;
}
void dq_result(const Tensor& dq, const DqSums& sums, const AttentionSizes& s) {
    LAUNCH((s.D == 64 ? dq_from_sums<64> : dq_from_sums<128>), unsigned(s.B * s.H * sums.tiles * (s.D / 64)), threads, 0)
    (data<Element>(dq), sums, s);
}

}  // namespace ultrascale::ops
