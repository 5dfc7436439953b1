// The products in groups on tensor cores, as both kinds of kernels see them. Private to
// common/cuda.
#pragma once

#include "grouped.cuh"
#include "mma.cuh"

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

}  // namespace ultrascale::ops
