// The only kernel of the copy-engine collectives (comm_copies.h), and private to them.
#pragma once

#include "core/tensor.h"

namespace ultrascale::ops {

// out[i] = in_0[i] + in_1[i] + ..., in rank order, in fp32 and rounded once. in_r is `own` for this
// rank; the other ranks' inputs lie in slots of `stride` elements each, in rank order without this
// rank; each slot begins at a multiple of 16 bytes. `count` elements of fp32, bf16 or fp16; fastest
// if `out` and `own` are aligned to 16 bytes, too. `out` may be `own`. Runs on the compute stream.
// ops_sum_slots.cu
void sum_slots(void* out, const void* own, const void* slots, int64_t stride, int64_t count,
               DType dtype, int rank, int ranks);

}  // namespace ultrascale::ops
