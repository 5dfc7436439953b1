// Each operation the model needs, declared once. common/cpu implements them with OpenBLAS and
// OpenMP, common/cuda with cuBLASLt and one kernel file per operation. They run on the compute
// stream.
//
// Conventions. Floating tensors are fp32, bf16 or fp16 (the activation dtype; all floating
// arguments of a call share it unless said otherwise) and the arithmetic inside is fp32. Outputs
// must exist with the shape given; they are overwritten unless the comment says "adds". An output
// that is added to (dweight) may be fp32 while the activations have 16 bits. Letters: B batch, T
// sequence, N = B*T tokens, h hidden, H heads, K kv heads, D head dimension, F feed-forward, V
// vocabulary. A shape that does not fit is a bug and fails check().
#pragma once

#include <vector>

#include "random.h"
#include "tensor.h"

namespace ultrascale::ops {

// ---- element-wise and reductions ----------------------------------------------------------------
void fill(Tensor x, float value);
void copy(Tensor to, const Tensor& from);  // converts between fp32, bf16, fp16, e4m3 and e5m2
void add(Tensor y, const Tensor& x, float alpha = 1);  // y += alpha * x; dtypes may differ
// y = a + b in fp32, rounded to y's dtype. a is fp32; y and b may have any dtype.
void add(Tensor y, const Tensor& a, const Tensor& b);
void scale(Tensor x, float alpha);  // x *= alpha
void accumulate_sum(Tensor total, const Tensor& x,
                    double factor = 1);  // total (1) fp64 += factor * sum of x
// total (1) fp64 += sum of x^2 over all of xs (of one dtype, which may also be e4m3 or e5m2), added
// in fp64 and in the list's order.
void accumulate_sum_squares(Tensor total, const std::vector<Tensor>& xs);
// Sets found (1) int32 to 1 if any number in xs (of one dtype) is infinite or NaN, and otherwise
// leaves it unchanged. The host does not wait.
void find_not_finite(Tensor found, const std::vector<Tensor>& xs);

// y[i] = x[i] / (1 - p) if the uniform number first + i of `random` (random.h) is above p, else 0;
// plus addend[i], if given. y may be x or addend. The index first + i is the element's position in
// a larger tensor of which x is a contiguous part, so every rank that computes an element draws the
// same number for it. The backward is the same call on the gradient. (Srivastava et al. 2014)
void dropout(Tensor y, const Tensor& x, float p, const Random& random, uint64_t first,
             const Tensor& addend = {});

// ---- matrix product -----------------------------------------------------------------------------
enum class Transpose { no, yes };
// d (M, N) = op(a) (M, K) * op(b) (K, N) + addend (M, N); tensors are read as matrices
// (Tensor::rows, cols). addend may be empty, or d itself to accumulate. d and addend may be fp32
// while a and b have 16 bits. bias (N), if given, is added to every row; it has d's dtype.
void matmul(Tensor d, const Tensor& a, Transpose ta, const Tensor& b, Transpose tb,
            const Tensor& addend = {}, const Tensor& bias = {});

// ---- embedding ----------------------------------------------------------------------------------
// Row n of out (N, h) = row tokens[n] - first_row of weight (V, h); zeros for rows outside the
// weight (a vocabulary shard).
void embedding_forward(Tensor out, const Tensor& tokens /* (N) int32 */, const Tensor& weight,
                       int64_t first_row = 0);
// Adds the rows of dout (N, h) to dweight (V, h) in the tokens' order, so the result does not
// depend on the number of threads.
void embedding_backward(Tensor dweight, const Tensor& tokens, const Tensor& dout,
                        int64_t first_row = 0);

// ---- rows in another order ----------------------------------------------------------------------
// Row n of out = row index[n] of in. index (N) int32 is on the device. Whatever its shape, out is
// read as N rows of out.numel() / N elements, and in as any number of such rows. Any dtype, the
// same for both. An index outside of `in` is a bug.
void gather_rows(Tensor out, const Tensor& in, const Tensor& index);

// ---- RMSNorm: y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps) (Zhang & Sennrich 2019) ---
void rmsnorm_forward(Tensor y, Tensor rstd /* (N) fp32 */, const Tensor& x, const Tensor& weight,
                     float eps);
// dx = dresidual + the norm's input gradient (dresidual may be empty, or dx itself); adds to
// dweight (h), or overwrites it.
void rmsnorm_backward(Tensor dx, Tensor dweight, const Tensor& dy, const Tensor& x,
                      const Tensor& rstd, const Tensor& weight, const Tensor& dresidual = {},
                      bool add = true);

// RMSNorm of each head of q and k, before RoPE (Qwen 3). qkv and out: (N, (H + 2K) D). The heads of
// q are weighted by q_weight (D), those of k by k_weight (D), and v is copied. rstd (N, H + K)
// fp32.
void norm_heads_forward(Tensor out, Tensor rstd, const Tensor& qkv, const Tensor& q_weight,
                        const Tensor& k_weight, float eps);
// Overwrites d, the gradient of out, with the gradient of qkv; adds to dq_weight and dk_weight, or
// overwrites them.
void norm_heads_backward(Tensor d, Tensor dq_weight, Tensor dk_weight, const Tensor& qkv,
                         const Tensor& rstd, const Tensor& q_weight, const Tensor& k_weight,
                         bool add = true);

// ---- rotary position embedding (Su et al. 2021), rotate-half as Hugging Face --------------------
// qkv (B, T, (H + 2K) * D) -> q (B, T, H, D) and k (B, T, K, D), both rotated by positions *
// frequencies, and v (B, T, K, D).
void rope_forward(Tensor q, Tensor k, Tensor v, const Tensor& qkv,
                  const Tensor& positions /* (B, T) int32 */,
                  const Tensor& frequencies /* (D/2) fp32 */);
// Rotates by the negative angles and writes the result into one dqkv.
void rope_backward(Tensor dqkv, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                   const Tensor& positions, const Tensor& frequencies);

// ---- attention ----------------------------------------------------------------------------------
// Which keys a query may attend to. In the whole sequence, query i is at position q_offset + i *
// stride and key j at k_offset + j * stride (stride n: every n-th token, as in striped layouts).
// With `causal`, a query attends to keys up to its own position, and to all of the sequence's first
// `prefix` ones, even to later ones than its own. document_starts (B, Tq) int32, if given, has for
// each query the first position in the whole sequence that it sees, its document's or that of its
// sliding window; earlier keys are masked. It never decreases from one query to the next.
struct AttentionMask {
    bool causal = true;
    int64_t q_offset = 0, k_offset = 0;
    Tensor document_starts;
    int64_t stride = 1;
    int64_t prefix = 0;
};
// o (B, Tq, H, D) = softmax(q k^T / sqrt(D)) v with q (B, Tq, H, D), k and v (B, Tk, K, D), where H
// is a multiple of K; lse (B, H, Tq) fp32 is the log-sum-exp of each row's scores. It works in
// tiles with an online softmax, without a Tq x Tk buffer (FlashAttention, Dao et al. 2022). A query
// without any visible key gives zeros and lse = -infinity.
void attention_forward(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionMask& mask);
// delta (B, H, Tq) fp32 = row sums of dout * o: all that the backward needs to know of the output.
void attention_delta(Tensor delta, const Tensor& dout, const Tensor& o);
// The gradients that attention_backward adds to, so that ring attention sums over blocks of keys
// and queries in fp32. dq: an fp32 tensor, which may be the output dq itself; if it is empty,
// nothing is added. dkv: whether dk and dv, which must then be fp32, are added to instead of
// overwritten.
struct AttentionAdds {
    Tensor dq = {};
    bool dkv = false;
};
// Gradients for these keys, given the log-sum-exp and delta of the *whole* row, so that ring
// attention can call it block by block. dq has q's dtype or fp32; so do dk and dv, which share a
// dtype. A sum that ends in 16 bits is rounded once. The gradients of keys that no query sees, and
// of queries that see no key, are zero: sums that they are added to stay as they are.
void attention_backward(Tensor dq, Tensor dk, Tensor dv, const Tensor& dout, const Tensor& q,
                        const Tensor& k, const Tensor& v, const Tensor& lse, const Tensor& delta,
                        const AttentionMask& mask, AttentionAdds add = {});

// Dropout of the probabilities, between the softmax and the product with v. The one of query i and
// key j in head h of sequence b draws the random number
//   first + b * per_sequence + (h * Tq + i) * Tk + j
// If `mask` (e4m3) and `dropped` (q's dtype) are given, both (B, H, Tq, Tk), forward fills them
// with 0 or 1 and with the result, and backward reads them; else it draws and multiplies again.
struct ProbabilityDropout {
    float p;
    Random random;
    uint64_t first, per_sequence;
    Tensor mask = {}, dropped = {};
};
// Naive attention with the whole matrix in memory: probabilities (B, H, Tq, Tk), before dropout,
// are an output of the forward and an input of the backward. dropout may be nullptr.
void attention_naive_forward(Tensor o, Tensor probabilities, const Tensor& q, const Tensor& k,
                             const Tensor& v, const AttentionMask& mask,
                             const ProbabilityDropout* dropout = nullptr);
void attention_naive_backward(Tensor dq, Tensor dk, Tensor dv, const Tensor& dout, const Tensor& q,
                              const Tensor& k, const Tensor& v, const Tensor& probabilities,
                              const ProbabilityDropout* dropout = nullptr);

// ---- SwiGLU (Shazeer 2020): out (N, F) = silu(gate) * up with gate_up (N, 2F) = [gate | up] -----
// With weights (N) fp32, row n is multiplied by weight n. So a router's weight can be applied
// before an expert's down_proj, and its backward does not need down_proj's output of k h elements a
// token.
void swiglu_forward(Tensor out, const Tensor& gate_up, const Tensor& weights = {});
// Overwrites `dout` with swiglu's output. Forward did not keep it, and recomputing it here costs
// little because backward reads gate and up anyway. With weights, dweights (N) fp32 is an output
// too. amax (1) fp32, unless it is empty, becomes the largest magnitude of dgate_up if that is
// larger; rounding dgate_up to 8 bits then needs no search of its own (ops_fp8.h). Not with
// weights.
void swiglu_backward(Tensor dgate_up, Tensor dout_to_out, const Tensor& gate_up,
                     const Tensor& weights = {}, Tensor dweights = {}, Tensor amax = {});

// ---- loss ---------------------------------------------------------------------------------------
// losses (N) fp32 = -log softmax(logits)[target], 0 where the target is ignored (-100). With dscale
// != 0 the logits (N, V) are overwritten with their gradient, (softmax - onehot) * dscale (0 where
// ignored), which saves a second buffer of N x V.
inline constexpr int32_t ignored_target = -100;
void cross_entropy(Tensor losses, Tensor logits, const Tensor& targets /* (N) int32 */,
                   float dscale);

// ---- optimizer ----------------------------------------------------------------------------------
struct AdamWSettings {
    float lr, beta1, beta2, eps;
    int64_t step;    // 1 at the first update
    float max_norm;  // clip the gradient to this global norm; 0: do not clip
};
struct AdamWItem {
    Tensor value, master, m, v, gradient;
    float weight_decay;  // 0 for norms
};
// One update like PyTorch's AdamW (Loshchilov & Hutter 2019), element by element in one pass:
//   g = gradient * min(1, max_norm / (sqrt(squared_norm) + 1e-6));  m, v, bias correction;
//   master *= 1 - lr * weight_decay
// The arithmetic is in fp32. master, m and v are fp32 (on CUDA, m and v may be bf16); value and
// gradient each have one dtype in all items. value receives the rounded master (it may be master
// itself). squared_norm (1) fp64 is the gradients' squared norm; it stays on the device, so the
// host need not wait for it. One call updates all parameters, on CUDA in one launch.
void adamw(const std::vector<AdamWItem>& items, const Tensor& squared_norm,
           const AdamWSettings& settings);
// Runs adamw on the host's threads, synchronously, for tensors in the host's memory (Memory::host,
// or any tensors on the CPU backend).
void adamw_on_host(const std::vector<AdamWItem>& items, const Tensor& squared_norm,
                   const AdamWSettings& settings);
// The FLOPs and memory traffic of one adamw call. Checks the items.
struct AdamWCost {
    double flops = 0, bytes = 0;
};
AdamWCost adamw_cost(const std::vector<AdamWItem>& items, const AdamWSettings& settings);

// Measures the device's matmul rate for this dtype, in FLOP/s: the best of a few products of size
// (n, n, n), or of smaller ones if these do not fit in memory.
double measure_matmul_rate(DType dtype, int64_t n = 1024);

}  // namespace ultrascale::ops
