// Shared by the attention operations: the sizes, and the keys that a query attends to. Private to
// common/cpu/ops_attention*.cpp.
#pragma once

#include "core/ops_attention.h"
#include "ops_common.h"

namespace ultrascale::ops {

struct AttentionSizes {
    int64_t B, Tq, Tk, H, K, D;
    // Elements from one token to the next in q, o and their gradients.
    int64_t q_row() const { return H * D; }
    int64_t k_row() const { return K * D; }  // in k, v and their gradients
    int64_t group() const { return H / K; }  // query heads per key head
    float scale() const { return 1.0f / std::sqrt(float(D)); }
};
inline AttentionSizes attention_sizes(const Tensor& q, const Tensor& k, const Tensor& v) {
    check(q.shape().size() == 4 && k.shape().size() == 4,
          "attention: q is (B, Tq, H, D), k and v (B, Tk, K, D)");
    AttentionSizes n = {q.size(0), q.size(1), k.size(1), q.size(2), k.size(2), q.size(3)};
    check(k.shape() == v.shape() && k.size(0) == n.B && k.size(3) == n.D,
          "attention: k and v are (B, Tk, K, D)");
    check(n.K > 0 && n.H % n.K == 0, "attention: H is a multiple of K");
    return n;
}

// The keys that query i of sequence b attends to: one contiguous range [begin, end), possibly
// empty.
struct KeyRange {
    int64_t begin, end;
};
class VisibleKeys {
public:
    VisibleKeys(const AttentionMask& mask, const AttentionSizes& n)
        : causal_(mask.causal),
          B_(n.B),
          Tq_(n.Tq),
          Tk_(n.Tk),
          shift_(shift_in_keys(mask)),
          prefix_(prefix_in_keys(mask)),
          k_offset_(mask.k_offset),
          stride_(mask.stride),
          starts_(mask.document_starts ? mask.document_starts.as<int32_t>() : nullptr) {
        check(!starts_ || mask.document_starts.numel() == n.B * n.Tq,
              "attention: document_starts is (B, Tq)");
    }
    KeyRange operator()(int64_t b, int64_t i) const {
        const int64_t end = causal_ ? std::min(std::max(shift_ + i + 1, prefix_), Tk_) : Tk_;
        const int64_t begin = starts_ ? first_key(starts_[b * Tq_ + i]) : 0;
        return {std::min(begin, end), end};
    }
    // The number of (query, key) pairs over all sequences, the minimum that an implementation must
    // compute.
    double pairs() const {
        double sum = 0;
        for (int64_t b = 0; b < B_; ++b)
            for (int64_t i = 0; i < Tq_; ++i)
                sum += double((*this)(b, i).end - (*this)(b, i).begin);
        return sum;
    }

private:
    // The first key at or after this position of the whole sequence.
    int64_t first_key(int64_t position) const {
        const int64_t further = position - k_offset_;  // from key 0; dividing takes 20 to 90 cycles
        return std::max<int64_t>(stride_ == 1 ? further : -divide_down(-further, stride_), 0);
    }
    bool causal_;
    int64_t B_, Tq_, Tk_, shift_, prefix_;
    int64_t k_offset_, stride_;
    const int32_t* starts_;
};

// x (B, T, K, D) -> (B, K, D, T)
inline Tensor transposed_heads(const Tensor& x) {
    const int64_t B = x.size(0), T = x.size(1), K = x.size(2), D = x.size(3);
    Tensor out = Tensor::empty({B, K, D, T}, DType::fp32, Memory::workspace);
    const float* from = x.as<float>();
    float* to = out.as<float>();
#pragma omp parallel for collapse(2) if (x.numel() > parallel_threshold)
    for (int64_t b = 0; b < B; ++b)
        for (int64_t k = 0; k < K; ++k)
            cblas_somatcopy(CblasRowMajor, CblasTrans, blasint(T), blasint(D), 1,
                            from + (b * T * K + k) * D, blasint(K * D), to + (b * K + k) * D * T,
                            blasint(T));
    return out;
}

}  // namespace ultrascale::ops
