// Dropout with counter-based random numbers: each thread calls Philox once and handles the four
// elements whose random numbers it returns. Memory-bound (reads x and the addend, writes y).
#include "ops_common.cuh"

namespace ultrascale::ops {

namespace {

// Element i of x uses random number first + i. packs: first and n are multiples of 4, and the
// addresses are aligned.
template <bool packs, class T>
__global__ void __launch_bounds__(256)
    drop(T* y, const T* x, const T* addend, float p, float factor, Random random, uint64_t first,
         int64_t n) {
    const uint64_t block = first / 4 + uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t begin = int64_t(4 * block - first);  // may lie before the beginning of x
    if (begin >= n) return;
    const std::array<float, 4> u = random.uniforms(block);
    if constexpr (packs) {
        Pack<T, 4> values = load<4>(x + begin), add;
        if (addend) add = load<4>(addend + begin);
#pragma unroll
        for (int j = 0; j < 4; ++j)
            values.x[j] = from_float<T>((u[j] > p ? to_float(values.x[j]) * factor : 0.0f) +
                                        (addend ? to_float(add.x[j]) : 0.0f));
        store(y + begin, values);
    } else {
        for (int j = 0; j < 4; ++j) {
            const int64_t i = begin + j;
            if (i < 0 || i >= n) continue;
            y[i] = from_float<T>((u[j] > p ? to_float(x[i]) * factor : 0.0f) +
                                 (addend ? to_float(addend[i]) : 0.0f));
        }
    }
}

}  // namespace

void dropout(Tensor y, const Tensor& x, float p, const Random& random, uint64_t first,
             const Tensor& addend) {
    const int64_t n = x.numel();
    check(y.numel() == n && (!addend || addend.numel() == n),
          "dropout: x, y and the addend are of one size");
    check(p >= 0 && p < 1, "dropout: p is in [0, 1)");
    OpSpan span("dropout", 2.0 * double(n), bytes_of(y, x) + (addend ? bytes_of(addend) : 0));
    if (n == 0) return;
    const auto blocks = int64_t((first + uint64_t(n) - 1) / 4 - first / 4 + 1);
    with_type(x.dtype(), [&]<class T>(T) {
        const T* add = addend ? data<T>(addend) : nullptr;
        const bool packs = first % 4 == 0 && n % 4 == 0 && aligned16({y.data(), x.data(), add});
        const unsigned grid = unsigned(ceil_div(blocks, 256));
        const Launch launch =
            packs ? LAUNCH((drop<true, T>), grid, 256, 0) : LAUNCH((drop<false, T>), grid, 256, 0);
        launch(data<T>(y), data<T>(x), add, p, 1 / (1 - p), random, first, n);
    });
}

}  // namespace ultrascale::ops
