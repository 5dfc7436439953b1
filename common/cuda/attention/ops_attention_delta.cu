// delta = rowsum(dout * o), which is all that attention's backward needs from the output. Reads
// both once (4 bytes per element in bf16).
#include "cuda/ops_common.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 128;

// A warp handles 32 tokens of one head, so that it writes 32 consecutive results: 8 lanes work on
// each row (b, t, h) of D elements, n elements per access, and the warp works on four rows at a
// time.
template <int n, class T>
__global__ void __launch_bounds__(threads) delta_rows(float* delta, const T* dout, const T* o,
                                                      int64_t B, int64_t Tq, int64_t H, int64_t D) {
    constexpr int lanes = 8;
    const int64_t blocks = (Tq + 31) / 32,
                  // Neighbouring warps take neighbouring heads.
        warp = (int64_t(blockIdx.x) * threads + threadIdx.x) / 32;
    const int64_t h = warp % H, first = warp / H % blocks * 32, b = warp / H / blocks;
    if (b >= B) return;
    const int lane = threadIdx.x % 32, group = lane / lanes;
    float mine = 0;
#pragma unroll 8
    for (int turn = 0; turn < lanes; ++turn) {
        const int64_t t = first + turn * (32 / lanes) + group, row = (b * Tq + t) * H + h;
        float sum = 0;
        for (int64_t d = lane % lanes * n; d < D && t < Tq; d += lanes * n) {
            const Pack<T, n> a = load<n>(dout + row * D + d), c = load<n>(o + row * D + d);
            for (int j = 0; j < n; ++j) sum += to_float(a.x[j]) * to_float(c.x[j]);
        }
        for (int offset = lanes / 2; offset > 0; offset /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        // The sum for token lane % (32 / lanes) of this turn.
        const float group_sum = __shfl_sync(0xffffffffu, sum, lane % (32 / lanes) * lanes);
        if (lane / (32 / lanes) == turn) mine = group_sum;
    }
    if (first + lane < Tq) delta[(b * H + h) * Tq + first + lane] = mine;
}

}  // namespace

void attention_delta(Tensor delta, const Tensor& dout, const Tensor& o) {
    const int64_t B = o.size(0), Tq = o.size(1), H = o.size(2), D = o.size(3), N = B * Tq * H;
    check(dout.numel() == o.numel() && delta.numel() == N,
          "attention_delta: dout, o (B, Tq, H, D), delta (B, H, Tq)");
    OpSpan span("attention_delta", 2.0 * double(o.numel()), bytes_of(delta, dout, o));
    with_type(o.dtype(), [&]<class T>(T) {
        const bool packs = packs_fit<T>(D, {dout.data(), o.data()});
        const auto kernel = packs ? delta_rows<pack_size<T>, T> : delta_rows<1, T>;
        LAUNCH(kernel, unsigned(ceil_div(B * H * ceil_div(Tq, 32), threads / 32)), threads, 0)
        (delta.as<float>(), data<T>(dout), data<T>(o), B, Tq, H, D);
    });
}

}  // namespace ultrascale::ops
