// The products in groups on tensor cores: the interface that both kinds of kernels share.
#pragma once

#include "cuda/mma.cuh"
#include "grouped.cuh"

namespace ultrascale::ops {

enum class GroupForm { forward, input, weight };

// forward, input: out (R, N) from rows (R, K) and w; weight: out (G, M, N) from rows (R, M) and (R,
// N). M, N and K are multiples of 8.
struct GroupProduct {
    const int32_t* counts;
    int G, M, N, K;
};

// a: x, dy or dy; b: w, w or x. All but `out` and `addend` of a weight's gradient are bf16.
void grouped_wgmma(GroupForm form, const Tensor& out, const Tensor& a, const Tensor& b,
                   const Tensor& addend, const GroupProduct& p);
void grouped_mma(GroupForm form, const Tensor& out, const Tensor& a, const Tensor& b,
                 const Tensor& addend, const GroupProduct& p);

// Stores a warp's 16 x (8 tiles) sums from (row, column) on, two elements at a time, for rows
// before row_end and columns before N, with an addend if it is given. out: (..., N).
template <class D, int tiles>
__device__ void store_sums(D* out, const D* addend, int N, int row, int row_end, int column,
                           const float (&sum)[tiles][4]) {
    const int lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int here = row + 8 * half + lane / 4;
        if (here >= row_end) continue;
        const int64_t first = int64_t(here) * N + column + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
            if (column + 8 * j >= N) break;
            Pack<D, 2> pair;
            if (addend) pair = load<2>(addend + first + 8 * j);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float value = sum[j][2 * half + i];
                pair.x[i] = from_float<D>(addend ? to_float(pair.x[i]) + value : value);
            }
            store(out + first + 8 * j, pair);
        }
    }
    __syncwarp();  // lanes diverge at row_end; the next product needs the whole warp
}

}  // namespace ultrascale::ops
