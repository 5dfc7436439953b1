// Latent attention's columns and rotations, one thread an element or a pair. Neighbouring threads
// have neighbouring columns, so that a warp reads and writes whole lines; memory-bound.
#include "core/ops_latent_checks.h"
#include "ops_common.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;

// The first column of `to` and `from` is the first one copied.
template <class Unit>
__global__ void __launch_bounds__(threads)
    copy(Unit* to, int64_t to_cols, const Unit* from, int64_t from_cols, int64_t n, int64_t count,
         int64_t all) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (i >= all) return;
    const int64_t row = i / count, column = i % count;
    to[row * to_cols + column] = from[row / n * from_cols + column];
}

template <class T>
__global__ void __launch_bounds__(threads)
    sum(T* to, const T* from, int64_t from_cols, int64_t n, int64_t count, int64_t all) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (i >= all) return;
    const T* const first = from + i / count * n * from_cols + i % count;
    float total = 0;
    for (int64_t j = 0; j < n; ++j) total += to_float(first[j * from_cols]);
    to[i] = from_float<T>(total);
}

// A thread rotates one pair of every head of a token: its sine and cosine cost more than that.
template <class T>
__global__ void __launch_bounds__(threads)
    rotate(T* x, const int32_t* positions, const float* frequencies, float sign, int64_t tokens,
           int64_t H, int64_t D, int64_t pairs) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (i >= tokens * pairs) return;
    const int64_t token = i / pairs, pair = i % pairs;
    float sine, cosine;
    sincosf(float(positions[token]) * frequencies[pair], &sine, &cosine);
    sine *= sign;
    for (int64_t head = 0; head < H; ++head) {
        T* const two = x + (token * H + head + 1) * D - 2 * (pairs - pair);
        const float a = to_float(two[0]), b = to_float(two[1]);
        two[0] = from_float<T>(a * cosine - b * sine);
        two[1] = from_float<T>(b * cosine + a * sine);
    }
}

unsigned blocks_for(int64_t all) { return unsigned(ceil_div(all, threads)); }

}  // namespace

void copy_columns(Tensor to, int64_t to_first, const Tensor& from, int64_t from_first,
                  int64_t count) {
    const int64_t n = rows_to_one(to, from), all = to.rows() * count;
    const OpSpan span = copy_columns_span(to, to_first, from, from_first, count);
    const int64_t element = dtype_bytes(to.dtype());
    check(element == 2 || element == 4, "copy_columns: elements of 2 or 4 bytes");
    const auto launch = [&]<class Unit>(Unit) {
        LAUNCH(copy<Unit>, blocks_for(all), threads, 0)
        (static_cast<Unit*>(to.data()) + to_first, to.cols(),
         static_cast<const Unit*>(from.data()) + from_first, from.cols(), n, count, all);
    };
    if (element == 2)
        launch(uint16_t{});
    else
        launch(uint32_t{});
}

void sum_columns(Tensor to, const Tensor& from, int64_t from_first) {
    const int64_t n = rows_to_one(from, to), count = to.cols(), all = to.numel();
    const OpSpan span = sum_columns_span(to, from, from_first);
    with_type(to.dtype(), [&]<class T>(T) {
        LAUNCH(sum<T>, blocks_for(all), threads, 0)
        (data<T>(to), data<T>(from) + from_first, from.cols(), n, count, all);
    });
}

void rotate_pairs(Tensor x, const Tensor& positions, const Tensor& frequencies, bool back) {
    const OpSpan span = rotate_pairs_span(x, positions, frequencies);
    const int64_t tokens = x.size(0) * x.size(1), H = x.size(2), D = x.size(3),
                  pairs = frequencies.numel();
    with_type(x.dtype(), [&]<class T>(T) {
        LAUNCH(rotate<T>, blocks_for(tokens * pairs), threads, 0)
        (data<T>(x), positions.as<int32_t>(), frequencies.as<float>(), back ? -1.0f : 1.0f, tokens,
         H, D, pairs);
    });
}

}  // namespace ultrascale::ops
