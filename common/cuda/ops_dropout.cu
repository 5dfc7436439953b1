// Dropout with counter-based random numbers: a thread calls Philox once and takes the four elements whose numbers it gives. Bound by
// memory (reads x and the addend, writes y).
#include "ops_common.cuh"

namespace ultrascale::ops {

namespace {

// As philox4x32 and Random::uniforms (random.cpp).
struct Uniforms {
    float of[4];
};
__device__ Uniforms uniforms(uint64_t block, uint32_t key0, uint32_t key1) {
    uint32_t x[4] = {uint32_t(block), uint32_t(block >> 32), 0, 0};
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t(0xD2511F53u) * x[0], b = uint64_t(0xCD9E8D57u) * x[2];
        const uint32_t next[4] = {uint32_t(b >> 32) ^ x[1] ^ key0, uint32_t(b), uint32_t(a >> 32) ^ x[3] ^ key1, uint32_t(a)};
        for (int i = 0; i < 4; ++i) x[i] = next[i];
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    Uniforms all;
    for (int i = 0; i < 4; ++i) all.of[i] = float((x[i] >> 8) + 1) * 0x1p-24f;
    return all;
}

// Element i of x has the number first + i. packs: first and n are multiples of 4, and the addresses allow for packs.
template <bool packs, class T>
__global__ void __launch_bounds__(256)
    drop(T* y, const T* x, const T* addend, float p, float factor, uint32_t key0, uint32_t key1, uint64_t first, int64_t n) {
    const uint64_t block = first / 4 + uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t begin = int64_t(4 * block - first);  // may be before x begins
    if (begin >= n) return;
    const Uniforms u = uniforms(block, key0, key1);
    if constexpr (packs) {
        Pack<T, 4> values = load<4>(x + begin), add;
        if (addend) add = load<4>(addend + begin);
#pragma unroll
        for (int j = 0; j < 4; ++j)
            values.x[j] = from_float<T>((u.of[j] > p ? to_float(values.x[j]) * factor : 0.0f) + (addend ? to_float(add.x[j]) : 0.0f));
        store(y + begin, values);
    } else {
        for (int j = 0; j < 4; ++j) {
            const int64_t i = begin + j;
            if (i < 0 || i >= n) continue;
            y[i] = from_float<T>((u.of[j] > p ? to_float(x[i]) * factor : 0.0f) + (addend ? to_float(addend[i]) : 0.0f));
        }
    }
}

}  // namespace

void dropout(Tensor y, const Tensor& x, float p, const Random& random, uint64_t first, const Tensor& addend) {
    const int64_t n = x.numel();
    check(y.numel() == n && (!addend || addend.numel() == n), "dropout: x, y and the addend are of one size");
    check(p >= 0 && p < 1, "dropout: p is in [0, 1)");
    OpSpan span("dropout", 2.0 * double(n), bytes_of(y, x) + (addend ? bytes_of(addend) : 0));
    if (n == 0) return;
    const auto [key0, key1] = random.key();
    const auto blocks = int64_t((first + uint64_t(n) - 1) / 4 - first / 4 + 1);
    with_type(x.dtype(), [&]<class T>(T) {
        const T* add = addend ? data<T>(addend) : nullptr;
        const bool packs = first % 4 == 0 && n % 4 == 0 && aligned16({y.data(), x.data(), add});
        const unsigned grid = unsigned(ceil_div(blocks, 256));
        const Launch launch = packs ? LAUNCH((drop<true, T>), grid, 256, 0) : LAUNCH((drop<false, T>), grid, 256, 0);
        launch(data<T>(y), data<T>(x), add, p, 1 / (1 - p), key0, key1, first, n);
    });
}

}  // namespace ultrascale::ops
