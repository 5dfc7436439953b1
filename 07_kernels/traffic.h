// --traffic: attention with the T x T matrices in memory against FlashAttention, in FLOPs and bytes
// of memory traffic, by formula; and our forward kernels' bytes by formula beside the microscope's
// count (on a GPU: beside their time).
//
// The size is that of the example in the FlashAttention paper (Dao et al. 2022, figure 2; also in
// the playbook's slides), GPT-2 medium: 64 sequences of 1024 tokens, 16 heads of 64 numbers, fp16.
//
//   Standard, forward and backward, each operation a kernel. How often a T x T matrix passes:
//     S = Q K^T          written                         1
//     mask               read, written                   2
//     softmax            read, P written                 2
//     dropout            read, written; its mask, bytes  2.5
//     O = P V            read                            1      forward: 8.5
//     dV = P^T dO        read                            1
//     dP = dO V^T        written                         1
//     dropout            read, written; its mask         2.5
//     softmax            P, dP read, dS written          3
//     dQ = dS K          read                            1
//     dK = dS^T Q        read                            1      backward: 9.5
//     and twelve passes of a T x D matrix: Q K V O; then dO dV, dO V, K dQ, Q dK
//
//   FlashAttention 1 with n = T / 256 blocks of keys, in passes of a T x D matrix. Keys are in the
//   outer loop, so that each block of them reads all queries and corrects the results so far:
//     forward    K V, n Q, n O written, n - 1 O read                      3 n + 1
//     backward   K V dK dV, O, n Q, n dO, n dQ written, n - 1 dQ read     4 n + 4
//
// A product is 2 B H T^2 D FLOPs. Standard attention has 2 of them forward and 4 backward, and
// FlashAttention computes S once more: 7/6 of the FLOPs, and a ninth of the bytes. (The paper gives
// 66.6 and 75.2 GFLOP. Their difference is one product of one head of each sequence, where its
// bytes are those of all 16 heads.)
#pragma once

#include "ladder.h"

namespace ultrascale::kernels {

struct AttentionSize {
    double B, T, H, D;
    double product_flops() const { return 2 * B * H * T * T * D; }
    double square() const { return B * H * T * T; }  // elements
    double tensor() const { return B * H * T * D; }
};
inline const Sizes size_of_slides = {64, 1024, 16, 64};  // B, T, H, D

// Bytes of forward and backward, in 16 bits.
double standard_attention_bytes(const AttentionSize& size);
double flash_attention_bytes(const AttentionSize& size, double keys_of_block = 256);

// The bytes that our causal forward kernels ask of global memory, as the microscope counts them: in
// sectors of 32 bytes and without caches. T: a multiple of 64. (In tiles on the diagonal the
// microscope may count a few sectors more: it groups the accesses that the lanes of a warp make in
// their k-th turn of an unrolled loop, and lanes that skip a turn are then a row behind.)
double attention_naive_sectors(const AttentionSize& size);
double flash_attention_sectors(const AttentionSize& size);

// Formats the tables. `rungs`: attention's, as far as they were run.
std::string traffic(const std::vector<KernelResult>& results);
// Whether every count is at least its formula, and exceeds it by at most 5 %.
bool counted_as_by_formula(const std::vector<KernelResult>& results);

}  // namespace ultrascale::kernels
