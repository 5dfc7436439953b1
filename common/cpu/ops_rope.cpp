// Rotary position embedding, rotate-half: elements i and i + D/2 of a head form a pair, rotated by
// position * frequency i. The same pass splits the projection's output into q, k and v (or joins
// their gradients).
#include <cstring>

#include "ops_common.h"

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

// Rotates `heads` heads of D elements by the angles with the given cosines and sines (D/2 each);
// `sine_sign` -1 rotates back.
template <class T>
void rotate(T* out, const T* in, int64_t heads, int64_t D, const float* cosine, const float* sine,
            float sine_sign) {
    const int64_t half = D / 2;
    for (int64_t head = 0; head < heads; ++head, in += D, out += D)
#pragma omp simd
        for (int64_t i = 0; i < half; ++i) {
            const float a = float(in[i]), b = float(in[i + half]), c = cosine[i],
                        s = sine_sign * sine[i];
            store(out[i], a * c - b * s);
            store(out[i + half], b * c + a * s);
        }
}

// Calls body(row, cosine, sine) for each token's row. Computing sines costs more than the rotation,
// and the sequences of a batch mostly have the same positions. So a thread processes index t of all
// sequences in turn and reuses the last position's sines.
template <class Body>
void for_each_token(const Sizes& s, const Tensor& positions, const Tensor& frequencies, Body body) {
    const int64_t half = s.D / 2;
    Tensor scratch =
        Tensor::empty({omp_get_max_threads(), 2, half}, DType::fp32, Memory::workspace);
    float* tables = scratch.as<float>();
    const int32_t* position = positions.as<int32_t>();
    const float* frequency = frequencies.as<float>();
#pragma omp parallel for if (s.B * s.T * s.columns() > parallel_threshold)
    for (int64_t t = 0; t < s.T; ++t) {
        float *cosine = tables + omp_get_thread_num() * 2 * half, *sine = cosine + half;
        for (int64_t b = 0; b < s.B; ++b) {
            if (b == 0 || position[b * s.T + t] != position[(b - 1) * s.T + t])
                for (int64_t i = 0; i < half; ++i) {
                    const float angle = float(position[b * s.T + t]) * frequency[i];
                    cosine[i] = std::cos(angle);
                    sine[i] = std::sin(angle);
                }
            body(b * s.T + t, cosine, sine);
        }
    }
}

}  // namespace

void rope_forward(Tensor q, Tensor k, Tensor v, const Tensor& qkv, const Tensor& positions,
                  const Tensor& frequencies) {
    const Sizes s = sizes_of(q, k, v, qkv, positions, frequencies);
    OpSpan span("rope_forward", 3.0 * bytes_of(q, k) / double(dtype_bytes(q.dtype())),
                bytes_of(qkv, q, k, v, positions));
    with_type(q.dtype(), [&]<class T>(T) {
        T *q_data = q.as<T>(), *k_data = k.as<T>(), *v_data = v.as<T>();
        const T* qkv_data = qkv.as<T>();
        const int64_t q_size = s.H * s.D, kv_size = s.K * s.D;
        for_each_token(s, positions, frequencies,
                       [=](int64_t n, const float* cosine, const float* sine) {
                           const T* row = qkv_data + n * (q_size + 2 * kv_size);
                           rotate(q_data + n * q_size, row, s.H, s.D, cosine, sine, 1);
                           rotate(k_data + n * kv_size, row + q_size, s.K, s.D, cosine, sine, 1);
                           std::memcpy(v_data + n * kv_size, row + q_size + kv_size,
                                       size_t(kv_size) * sizeof(T));
                       });
    });
}

void rope_backward(Tensor dqkv, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                   const Tensor& positions, const Tensor& frequencies) {
    const Sizes s = sizes_of(dq, dk, dv, dqkv, positions, frequencies);
    OpSpan span("rope_backward", 3.0 * bytes_of(dq, dk) / double(dtype_bytes(dq.dtype())),
                bytes_of(dqkv, dq, dk, dv, positions));
    with_type(dq.dtype(), [&]<class T>(T) {
        T* dqkv_data = dqkv.as<T>();
        const T *dq_data = dq.as<T>(), *dk_data = dk.as<T>(), *dv_data = dv.as<T>();
        const int64_t q_size = s.H * s.D, kv_size = s.K * s.D;
        for_each_token(s, positions, frequencies,
                       [=](int64_t n, const float* cosine, const float* sine) {
                           T* row = dqkv_data + n * (q_size + 2 * kv_size);
                           rotate(row, dq_data + n * q_size, s.H, s.D, cosine, sine, -1);
                           rotate(row + q_size, dk_data + n * kv_size, s.K, s.D, cosine, sine, -1);
                           std::memcpy(row + q_size + kv_size, dv_data + n * kv_size,
                                       size_t(kv_size) * sizeof(T));
                       });
    });
}

}  // namespace ultrascale::ops
