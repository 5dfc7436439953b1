// What Hopper's tensor cores lose of a sum of 8-bit products, emulated on the host.
//
// A tensor core takes 32 products and the sum before them at a time. It shifts all of them to the
// exponent of the largest, keeps `bits` bits from there on and cuts off the rest:
//
//     sum       1.0110100111010 |                     a sum that has grown
//     product   0.0000000011011 | 101  <- cut off     is given less and less of the products
//
// With 14 bits and k = 4096 that costs up to 2 % of a result. The cure: after every `promote_every`
// products the sum leaves for an fp32 register on the CUDA cores, and the tensor cores begin anew
// at zero (DeepSeek-V3 Technical Report, section 3.3.2; the kernels that do it:
// cuda/fp8_blocks_wgmma.cu).
#pragma once

#include <cstdint>
#include <span>

namespace ultrascale {

struct Accumulator {
    int bits = 14;                // with the leading one; 0: exact sums, rounded to fp32 at the end
    int64_t promote_every = 128;  // k; a multiple of 32. 0: never
};

// The sum of a[i] b[i], of fp8 numbers (or others whose products are exact in fp32).
float emulated_dot(std::span<const float> a, std::span<const float> b, const Accumulator& how);

// d (M, N) = a (M, K) b (N, K)^T, all row-major on the host, on all threads.
void emulated_matmul(std::span<float> d, std::span<const float> a, std::span<const float> b,
                     int64_t M, int64_t N, int64_t K, const Accumulator& how);

}  // namespace ultrascale
