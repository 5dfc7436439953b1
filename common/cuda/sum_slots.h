// Private to the collectives by copy engines (comm_copies.h): their one kernel.
#pragma once

#include "core/tensor.h"

namespace ultrascale::ops {

// out[i] = in_0[i] + in_1[i] + ..., in rank order, in fp32 and rounded once. in_r is `own` for this
// rank; the others' lie in slots of `stride` elements each, in rank order without this rank, which
// begin at multiples of 16 bytes. `count` elements of fp32, bf16 or fp16; fastest where `out` and
// `own` begin so, too. `out` may be `own`. On the compute stream. ops_sum_slots.cu
void sum_slots(void* out, const void* own, const void* slots, int64_t stride, int64_t count,
               DType dtype, int rank, int ranks);

}  // namespace ultrascale::ops
