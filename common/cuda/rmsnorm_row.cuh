// A row that a group of threads keeps in registers between RMSNorm's sum and its product, whatever
// happens to the result. Private to common/cuda.
#pragma once

#include "ops_common.cuh"

namespace ultrascale::ops {

// n elements from x + i on; zeros if i is not before the row's end h. (Written with words, since
// the compiler would otherwise choose between zero and a number for each element.)
template <int n, class T>
__device__ Pack<T, n> load_up_to(const T* x, int i, int h) {
    constexpr int count = n * int(sizeof(T)) / 4;
    Pack<uint32_t, count> words = {};
    if (i < h) words = load<count>(reinterpret_cast<const uint32_t*>(x + i));
    return reinterpret_cast<const Pack<T, n>&>(words);
}

constexpr int packs_kept = 4;  // in each thread's registers

// Loads a row x of h elements, h at most group * packs_kept * n, and returns its rstd. Thread i of
// the group keeps packs i, i + group, ...; packs after the row's end are zeros.
template <int group, int n, class T>
__device__ float load_row(Pack<T, n> (&kept)[packs_kept], const T* x, float eps, int h) {
#pragma unroll
    for (int p = 0; p < packs_kept; ++p)
        kept[p] = load_up_to<n>(x, (p * group + int(threadIdx.x)) * n, h);
    float squares = 0;
#pragma unroll
    for (int p = 0; p < packs_kept; ++p) {
        float values[n];
        to_floats(values, kept[p]);
#pragma unroll
        for (int j = 0; j < n; ++j) squares += values[j] * values[j];
    }
    if constexpr (group == 32)
        squares = warp_sum(squares);
    else
        squares = block_sum<group>(squares);
    return rsqrtf(__fdividef(squares, float(h)) + eps);
}

// Multiplies a pack of such a row by its rstd r and by the weight at the same columns.
template <int n, class T>
__device__ void normalise(Pack<T, n>& pack, float r, const Pack<T, n>& weight) {
    float x[n], w[n];
    to_floats(x, pack), to_floats(w, weight);
#pragma unroll
    for (int j = 0; j < n; ++j) x[j] = x[j] * r * w[j];
    pack = from_floats<T>(x);
}

// The largest number of elements of a row that a group of threads can keep, n to a pack.
template <int n>
constexpr int64_t longest_kept() {
    return 512 * packs_kept * n;
}

// Calls start(group, grid, block) for N rows of h elements, at most longest_kept. `group`, a
// std::integral_constant, is the smallest group that can keep them.
template <int n, class Start>
void with_group(int64_t N, int64_t h, const Start& start) {
    constexpr int warp_row = 32 * packs_kept * n;
    if (h <= warp_row)
        start(std::integral_constant<int, 32>(), unsigned(ceil_div(N, 8)), dim3(32, 8));
    else if (h <= 4 * warp_row)
        start(std::integral_constant<int, 128>(), unsigned(N), dim3(128));
    else
        start(std::integral_constant<int, 512>(), unsigned(N), dim3(512));
}

}  // namespace ultrascale::ops
