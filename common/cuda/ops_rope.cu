// Rotary position embedding, rotate-half: elements i and i + D/2 of a head form a pair, which is
// rotated by the angle position * frequency[i].
//
// One pass from qkv to q, k, v (or back) reads and writes each element once (4 bytes per element in
// bf16). Each block handles a few tokens; its threads first compute the tokens' sines and cosines
// (D/2 of each, shared by all heads) in shared memory, since these cost more than the rotation.
#include "ops_common.cuh"

namespace ultrascale::ops {

namespace {

struct Sizes {
    int64_t B, T, H, K, D;
    int64_t columns() const { return (H + 2 * K) * D; }  // of qkv
};

Sizes sizes_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& qkv,
               const Tensor& positions, const Tensor& frequencies) {
    check(q.shape().size() == 4 && k.shape().size() == 4,
          "rope: q is (B, T, H, D) and k (B, T, K, D)");
    Sizes s = {q.size(0), q.size(1), q.size(2), k.size(2), q.size(3)};
    check(k.shape() == Shape({s.B, s.T, s.K, s.D}) && v.shape() == k.shape(),
          "rope: k and v are (B, T, K, D)");
    check(qkv.numel() == s.B * s.T * s.columns(), "rope: qkv is (B, T, (H + 2K) * D)");
    check(positions.numel() == s.B * s.T && 2 * frequencies.numel() == s.D,
          "rope: positions (B, T), frequencies (D/2)");
    return s;
}

constexpr int threads = 256, unroll = 2, tokens_of_block = 8;

// forward: qkv -> q, k, v. Otherwise q, k, v are gradients, which are rotated back into qkv's
// gradient. A thread handles n pairs at a time: n elements from the lower half of a head, and n
// from the upper half.
template <bool forward, int n, class T>
__global__ void __launch_bounds__(threads)
    rotate(T* q, T* k, T* v, T* qkv, const int32_t* positions, const float* frequencies, int64_t N,
           int H, int K, int half) {
    DYNAMIC_SHARED(float4, table);  // per token: D/2 cosines, then D/2 sines
    float* tables = reinterpret_cast<float*>(table);
    const int64_t first = int64_t(blockIdx.x) * tokens_of_block;
    const int tokens = int(min(int64_t(tokens_of_block), N - first));
    for (int i = threadIdx.x; i < tokens * half; i += threads) {
        const int token = i / half, pair = i % half;
        const float angle = float(positions[first + token]) * frequencies[pair];
        sincosf(angle, &tables[(2 * token + 1) * half + pair], &tables[2 * token * half + pair]);
    }
    __syncthreads();

    const int steps = half / n, heads = H + 2 * K, D = 2 * half,
              items = tokens * heads * steps;  // a head takes `steps` threads
    struct Addresses {
        T *from, *to;
        int table;  // of the cosines, -1 for a head of v
    };
    const auto address_of = [&](int i) {
        const int token = i / (heads * steps), head = i / steps % heads, pair = i % steps * n;
        const int64_t t = first + token;
        T* whole = qkv + (t * heads + head) * D + pair;
        T* part = (head < H       ? q + (t * H + head) * D
                   : head < H + K ? k + (t * K + head - H) * D
                                  : v + (t * K + head - H - K) * D) +
                  pair;
        return Addresses{forward ? whole : part, forward ? part : whole,
                         head < H + K ? 2 * token * half + pair : -1};
    };
    for (int begin = threadIdx.x; begin < items; begin += unroll * threads) {
        Addresses addresses[unroll];
        Pack<T, n> low[unroll], high[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            if (begin + u * threads < items) {
                addresses[u] = address_of(begin + u * threads);
                low[u] = load<n>(addresses[u].from), high[u] = load<n>(addresses[u].from + half);
            }
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            if (begin + u * threads >= items) continue;
            if (const int at = addresses[u].table; at >= 0) {
                float c[n], s[n];
                load_floats(c, tables + at), load_floats(s, tables + at + half);
#pragma unroll
                for (int j = 0; j < n; ++j) {
                    const float a = to_float(low[u].x[j]), b = to_float(high[u].x[j]),
                                sine = forward ? s[j] : -s[j];
                    low[u].x[j] = from_float<T>(a * c[j] - b * sine);
                    high[u].x[j] = from_float<T>(b * c[j] + a * sine);
                }
            }
            store(addresses[u].to, low[u]), store(addresses[u].to + half, high[u]);
        }
    }
}

template <bool forward>
void rope(const Sizes& s, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& qkv,
          const Tensor& positions, const Tensor& frequencies) {
    const int64_t N = s.B * s.T, half = s.D / 2;
    if (half == 0) return;
    check(tokens_of_block * s.columns() < int64_t(1) << 31, "rope: a row of qkv is too long");
    const unsigned blocks = unsigned(ceil_div(N, tokens_of_block));
    const size_t shared = size_t(tokens_of_block * 2 * half) * sizeof(float);
    const auto* position = positions.as<int32_t>();
    const auto* frequency = frequencies.as<float>();
    with_type(q.dtype(), [&]<class T>(T) {
        constexpr int n = pack_size<T>;
        T *q_data = data<T>(q), *k_data = data<T>(k), *v_data = data<T>(v),
          *qkv_data = data<T>(qkv);
        const bool packs = packs_fit<T>(half, {q_data, k_data, v_data, qkv_data});
        const Launch launch = packs ? LAUNCH((rotate<forward, n, T>), blocks, threads, shared)
                                    : LAUNCH((rotate<forward, 1, T>), blocks, threads, shared);
        launch(q_data, k_data, v_data, qkv_data, position, frequency, N, int(s.H), int(s.K),
               int(half));
    });
}

}  // namespace

void rope_forward(Tensor q, Tensor k, Tensor v, const Tensor& qkv, const Tensor& positions,
                  const Tensor& frequencies) {
    const Sizes s = sizes_of(q, k, v, qkv, positions, frequencies);
    OpSpan span("rope_forward", 3.0 * bytes_of(q, k) / double(dtype_bytes(q.dtype())),
                bytes_of(qkv, q, k, v, positions));
    rope<true>(s, q, k, v, qkv, positions, frequencies);
}

void rope_backward(Tensor dqkv, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                   const Tensor& positions, const Tensor& frequencies) {
    const Sizes s = sizes_of(dq, dk, dv, dqkv, positions, frequencies);
    OpSpan span("rope_backward", 3.0 * bytes_of(dq, dk) / double(dtype_bytes(dq.dtype())),
                bytes_of(dqkv, dq, dk, dv, positions));
    rope<false>(s, dq, dk, dv, dqkv, positions, frequencies);
}

}  // namespace ultrascale::ops
