// Shared by the operations that run on the host's threads, on every backend: dispatch on the
// element type, and stores that the compiler can vectorise.
#pragma once

#include "ops.h"

namespace ultrascale::ops {

// A loop over fewer elements than this would end before other threads have woken up.
inline constexpr int64_t parallel_threshold = 16384;

// Calls f(float{}), f(bf16{}) or f(fp16{}), whichever the dtype is.
template <class F>
void with_type(DType dtype, F&& f) {
    check(dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16,
          "operation on another dtype than fp32, bf16 and fp16");
    if (dtype == DType::fp32)
        f(float{});
    else if (dtype == DType::bf16)
        f(bf16{});
    else
        f(fp16{});
}
// Calls f for e4m3 and e5m2 as well, which most operations do not take.
template <class F>
void with_any_float(DType dtype, F&& f) {
    if (dtype == DType::e4m3)
        f(e4m3{});
    else if (dtype == DType::e5m2)
        f(e5m2{});
    else
        with_type(dtype, f);
}

// to = value, rounded. (The compiler does not vectorise the assignment of a whole bf16.)
inline void store(float& to, float value) { to = value; }
inline void store(bf16& to, float value) { to.bits = bf16(value).bits; }
inline void store(fp16& to, float value) { to.value = fp16(value).value; }
template <class Format>
void store(Fp8<Format>& to, float value) {
    to.bits = Fp8<Format>(value).bits;
}

}  // namespace ultrascale::ops
