// Shared by the attention kernels: the sizes, and DeviceMask, which determines on the device which
// keys a query sees. Private to common/cuda.
//
// The keys that query i of sequence b sees are always one contiguous range, [begin, end), which may
// be empty. Its end comes from causality and the prefix; its begin comes from the documents and the
// window, and costs a read of document_starts[b, i]. Neither decreases with i, so that the queries
// that see a block of keys are neighbours, too: [first_query, query_end).
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <climits>

#include "core/ops_attention.h"

namespace ultrascale::ops {

struct AttentionSizes {
    int64_t B, Tq, Tk, H, K, D;
    __host__ __device__ int64_t q_row() const {
        return H * D;
    }  // elements from one token to the next in q, o, dout, dq
    __host__ __device__ int64_t k_row() const { return K * D; }  // in k, v, dk, dv
    __host__ __device__ int64_t group() const {
        return H / K;
    }  // query heads that share a key head
    __host__ __device__ float scale() const { return 1.0f / sqrtf(float(D)); }
};
inline AttentionSizes attention_sizes(const Tensor& q, const Tensor& k, const Tensor& v) {
    check(q.shape().size() == 4 && k.shape().size() == 4,
          "attention: q is (B, Tq, H, D), k and v (B, Tk, K, D)");
    const AttentionSizes n = {q.size(0), q.size(1), k.size(1), q.size(2), k.size(2), q.size(3)};
    check(k.shape() == v.shape() && k.size(0) == n.B && k.size(3) == n.D,
          "attention: k and v are (B, Tk, K, D)");
    check(n.K > 0 && n.H % n.K == 0, "attention: H is a multiple of K");
    check(n.Tq < INT_MAX / 2 && n.Tk < INT_MAX / 2, "attention: kernels count keys in int");
    return n;
}

// The keys that a block of queries sees: the lowest and highest begin and end of their ranges. All
// of these queries see the keys from highest_begin to lowest_end (no mask is needed there); none
// sees a key before lowest_begin or from highest_end on.
struct BlockRange {
    int lowest_begin, highest_begin, lowest_end, highest_end;
};

struct DeviceMask {
    bool causal;
    // shift = q_offset - k_offset: query i has the same position as key i + shift.
    int64_t shift, k_offset;
    const int32_t* starts;  // document_starts (B, Tq), or null
    int64_t Tq, Tk;
    int prefix;  // with `causal`, every query sees these first keys

    // The end of the keys that query i may see, ignoring documents.
    __device__ int key_end(int64_t i) const {
        return !causal ? int(Tk) : int(min(max(shift + i + 1, int64_t(prefix)), Tk));
    }
    // The keys [begin, end) that query i of sequence b sees; an empty range if there is no such
    // query.
    __device__ void range(int64_t b, int64_t i, int& begin, int& end) const {
        begin = end = 0;
        if (i >= Tq) return;
        end = key_end(i);
        if (starts) begin = int(min(max(starts[b * Tq + i] - k_offset, int64_t(0)), int64_t(end)));
    }
    // The first query that sees this key, ignoring documents; Tq or more if none does.
    __device__ int64_t first_query(int64_t key) const {
        return causal && key >= prefix ? max(key - shift, int64_t(0)) : 0;
    }
    // The first query of sequence b whose document or window begins at key `key` or later; Tq if
    // there is none. It is found in log2(Tq) reads.
    __device__ int query_end(int64_t b, int64_t key) const {
        if (!starts) return int(Tq);
        int low = 0, high = int(Tq);
        while (low < high) {
            const int middle = (low + high) / 2;
            starts[b * Tq + middle] < key + k_offset ? low = middle + 1 : high = middle;
        }
        return low;
    }

    // The range for queries first .. first + rows - 1 (those below Tq; first < Tq). Each warp
    // computes it independently, with all its lanes.
    template <int rows>
    __device__ BlockRange block_range(int64_t b, int64_t first) const {
        const int64_t last = min(first + rows, Tq) - 1;
        BlockRange all = {0, 0, key_end(first), key_end(last)};
        if (!starts) return all;
        int low = INT_MAX, high = 0;
#pragma unroll 1  // a producer warp has few registers
        for (int64_t i = first + threadIdx.x % 32; i <= last; i += 32) {
            int begin, end;
            range(b, i, begin, end);
            low = min(low, begin), high = max(high, begin);
        }
        all.lowest_begin = __reduce_min_sync(0xffffffffu, low),
        all.highest_begin = __reduce_max_sync(0xffffffffu, high);
        return all;
    }
};
// The mask with a stride of 1. Positions become numbers of keys, counted from key 0, so no kernel
// divides by the stride (ops_attention_mask.cu).
AttentionMask counted_in_keys(const AttentionMask& mask);

// `mask` must be counted in keys, and live until the kernels are launched.
inline DeviceMask device_mask(const AttentionMask& mask, const AttentionSizes& n) {
    const Tensor& starts = mask.document_starts;
    check(mask.stride == 1, "attention: kernels count keys, not positions");
    check(!starts || starts.numel() == n.B * n.Tq, "attention: document_starts is (B, Tq)");
    return {mask.causal,
            mask.q_offset - mask.k_offset,
            mask.k_offset,
            starts ? starts.as<int32_t>() : nullptr,
            n.Tq,
            n.Tk,
            int(std::min(prefix_in_keys(mask), n.Tk))};
}

// The number of pairs of a query and a key that it sees, over all sequences, for FLOP counts. It
// ignores documents, whose starts are on the device. `mask` must be counted in keys.
inline double visible_pairs(const AttentionMask& mask, const AttentionSizes& n) {
    if (!mask.causal) return double(n.B) * double(n.Tq) * double(n.Tk);
    // Query i sees i + shift + 1 keys, but at least the prefix (queries before `some`) and at most
    // Tk (queries from `all` on).
    const int64_t shift = mask.q_offset - mask.k_offset,
                  prefix = std::min(prefix_in_keys(mask), n.Tk);
    const int64_t some = std::clamp<int64_t>(prefix - shift, 0, n.Tq),
                  all = std::clamp<int64_t>(n.Tk - shift, some, n.Tq);
    const double first = double(some + shift + 1), last = double(all + shift);
    return double(n.B) * (double(some) * double(prefix) + double(all - some) * (first + last) / 2 +
                          double(n.Tq - all) * double(n.Tk));
}

// The plain kernels (ops_attention_plain.cu). aligned: all tensors are aligned to 16 bytes.
void attention_forward_plain(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k,
                             const Tensor& v, const AttentionSizes& s, const DeviceMask& mask,
                             bool aligned);
void attention_backward_plain(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                              const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& lse, const Tensor& delta, const AttentionSizes& s,
                              const DeviceMask& mask, bool aligned);

// The tensor-core kernels (attention_mma_*.cu).
bool attention_mma_supported(DType dtype, int64_t D);
void attention_forward_mma(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k,
                           const Tensor& v, const AttentionSizes& s, const DeviceMask& mask);
struct AttentionBackwardInputs {
    const __nv_bfloat16 *dout, *q, *k, *v;
    const float *lse, *delta;
};
void attention_backward_keys_mma(__nv_bfloat16* dk, __nv_bfloat16* dv,
                                 const AttentionBackwardInputs& in, const AttentionSizes& s,
                                 const DeviceMask& mask);
void attention_backward_queries_mma(__nv_bfloat16* dq, const AttentionBackwardInputs& in,
                                    const AttentionSizes& s, const DeviceMask& mask);

// Hopper's kernels (attention_wgmma_*.cu), which support the same cases as the tensor-core kernels;
// addresses must be multiples of 16. Gradients may be fp32, and are then added to if `add` says so.
bool attention_wgmma_supported(DType dtype, const AttentionSizes& s);
void attention_forward_wgmma(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k,
                             const Tensor& v, const AttentionSizes& s, const DeviceMask& mask);
void attention_backward_wgmma(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                              const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& lse, const Tensor& delta, const AttentionSizes& s,
                              const DeviceMask& mask, AttentionAdds add);
// The backward with an open dQ (ops_attention.h).
OpenDq open_dq_wgmma(const Tensor& dout, const Tensor& lse, const Tensor& delta, int64_t K);
void attention_backward_wgmma(const OpenDq& open, int64_t b, int64_t first, const Tensor& dk,
                              const Tensor& dv, const Tensor& dout, const Tensor& q,
                              const Tensor& k, const Tensor& v, const AttentionSizes& s,
                              const DeviceMask& mask, bool add_dkv);
void close_dq_wgmma(const Tensor& dq, const OpenDq& open, const Tensor& addend);

}  // namespace ultrascale::ops
