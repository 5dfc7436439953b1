// Emulates on the host what Hopper's tensor cores lose in a sum of 8-bit products.
//
// A tensor core adds 32 products at a time to the sum before them. It shifts all of them to the
// exponent of the largest, keeps `bits` bits from there on, and cuts off the rest:
//
//     sum       1.0110100111010 |                     a sum that has grown
//     product   0.0000000011011 | 101  <- cut off     is given less and less of the products
//
// With 14 bits and k = 4096 this costs up to 2 % of a result. The cure: after every `promote_every`
// products the sum moves to an fp32 register on the CUDA cores, and the tensor cores begin again at
// zero (DeepSeek-V3 Technical Report, section 3.3.2; our kernel that does it is
// kernels/fp8_blocks_wgmma.cu).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "core/error.h"

namespace ultrascale::mixed_precision {

struct Accumulator {
    int bits = 14;  // the leading one included; 0: exact sums, rounded to fp32 at the end
    int64_t promote_every = 128;  // k; a multiple of 32. 0: never
};

namespace accumulator {

inline constexpr int64_t products_at_a_time = 32;  // k of one fp8 instruction

// Rounds x toward zero to a multiple of `unit`.
inline double cut(double x, double unit) { return std::trunc(x / unit) * unit; }

// Adds the products to `sum` as a tensor core does.
inline double add_step(double sum, const float* a, const float* b, int64_t n, int bits) {
    double products[products_at_a_time], largest = std::abs(sum);
    for (int64_t i = 0; i < n; ++i) {
        products[i] = double(a[i]) * double(b[i]);
        largest = std::max(largest, std::abs(products[i]));
    }
    if (largest == 0) return sum;
    const double unit = std::ldexp(1.0, std::ilogb(largest) + 1 - bits);
    sum = cut(sum, unit);
    for (int64_t i = 0; i < n; ++i) sum += cut(products[i], unit);
    return sum;
}

}  // namespace accumulator

// Returns the sum of a[i] b[i] for fp8 numbers (or others whose products are exact in fp32).
inline float emulated_dot(std::span<const float> a, std::span<const float> b,
                          const Accumulator& how) {
    using namespace accumulator;
    check(a.size() == b.size(), "emulated_dot: a and b are of one size");
    check(how.promote_every % products_at_a_time == 0,
          "emulated_dot: promotion after 32 n products");
    const int64_t K = int64_t(a.size());
    float total = 0;
    double sum = 0;
    for (int64_t k = 0; k < K; k += products_at_a_time) {
        const int64_t n = std::min(products_at_a_time, K - k);
        if (how.bits == 0)
            for (int64_t i = k; i < k + n; ++i) sum += double(a[size_t(i)]) * double(b[size_t(i)]);
        else
            sum = add_step(sum, a.data() + k, b.data() + k, n, how.bits);
        if (how.promote_every > 0 && (k + n) % how.promote_every == 0) {
            total += float(sum);
            sum = 0;
        }
    }
    return total + float(sum);
}

// Computes d (M, N) = a (M, K) b (N, K)^T, all row-major on the host, with all threads.
inline void emulated_matmul(std::span<float> d, std::span<const float> a, std::span<const float> b,
                            int64_t M, int64_t N, int64_t K, const Accumulator& how) {
    check(int64_t(d.size()) == M * N && int64_t(a.size()) == M * K && int64_t(b.size()) == N * K,
          "emulated_matmul: d (M, N), a (M, K), b (N, K)");
#pragma omp parallel for if (M * N * K > 16384)
    for (int64_t m = 0; m < M; ++m)
        for (int64_t n = 0; n < N; ++n)
            d[size_t(m * N + n)] = emulated_dot(a.subspan(size_t(m * K), size_t(K)),
                                                b.subspan(size_t(n * K), size_t(K)), how);
}

}  // namespace ultrascale::mixed_precision
