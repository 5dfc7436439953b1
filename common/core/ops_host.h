// Shared by the operations that run on the host's threads, on every backend: dispatch on the
// element type, and stores that the compiler can vectorise.
#pragma once

#include "ops.h"

namespace ultrascale::ops {

// A loop over fewer elements than this ends before other threads have woken up.
inline constexpr int64_t parallel_threshold = 16384;

// Calls f(float{}) or f(bf16{}), whichever the dtype is.
template <class F>
void with_type(DType dtype, F&& f) {
    check(dtype == DType::fp32 || dtype == DType::bf16,
          "operation on another dtype than fp32 and bf16");
    if (dtype == DType::fp32)
        f(float{});
    else
        f(bf16{});
}

// to = value, rounded. (The compiler does not vectorise the assignment of a whole bf16.)
inline void store(float& to, float value) { to = value; }
inline void store(bf16& to, float value) { to.bits = bf16(value).bits; }
inline void store(fp16& to, float value) { to.value = fp16(value).value; }

}  // namespace ultrascale::ops
