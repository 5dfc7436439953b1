// --demo merge: shows what rounding costs as the ring grows. The same attention is computed with
// its keys in one piece, and in 2 to 64 blocks whose outputs are merged (5_partial_sums.h). If the
// sum is kept in fp32, its error stays below 5e-6. If it is kept in bf16, it is rounded at every
// merge: the error is a thousand times as large, and grows with the number of blocks, which is the
// number of ranks in the ring.
#pragma once

#include <cmath>

#include "../5_partial_sums.h"
#include "core/random.h"
#include "lab/report/report.h"

namespace ultrascale::context_parallel {

namespace merge_demo {

inline constexpr int64_t queries = 256, keys = 4096, heads = 2, D = 64;

inline Tensor random_tensor(const char* name, int64_t tokens) {
    std::vector<float> numbers(size_t(tokens * heads * D));
    Random(1, name).normals(0, numbers);
    return Tensor::from_host<float>(numbers, {1, tokens, heads, D}, Memory::workspace);
}

// Returns || x - exact || / || exact ||.
inline double relative_error(const std::vector<float>& x, const std::vector<float>& exact) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < x.size(); ++i) {
        difference += std::pow(double(x[i]) - double(exact[i]), 2);
        norm += std::pow(double(exact[i]), 2);
    }
    return std::sqrt(difference / norm);
}

// Computes attention with the keys in so many blocks.
inline std::vector<float> in_blocks(const Tensor& q, const Tensor& k, const Tensor& v,
                                    int64_t blocks, DType merge_dtype) {
    PartialAttention sum(q, merge_dtype);
    for (int64_t b = 0; b < blocks; ++b) {
        const Range part{b * keys / blocks, (b + 1) * keys / blocks};
        const Block block{.queries = {0, queries}, .keys = part, .mask = {.causal = false}};
        sum.add(0, block, tokens_of(k, 0, part), tokens_of(v, 0, part), {});
    }
    return sum.output().to_host<float>();
}

}  // namespace merge_demo

// Returns false if the errors are not as the table's last line says. It needs only one rank.
inline bool demo_merge() {
    using namespace merge_demo;
    const Tensor q = random_tensor("q", queries), k = random_tensor("k", keys),
                 v = random_tensor("v", keys),
                 o = Tensor::empty(q.shape(), DType::fp32, Memory::workspace),
                 lse = Tensor::empty({1, heads, queries}, DType::fp32, Memory::workspace);
    ops::attention_forward(o, lse, q, k, v, {.causal = false});
    const std::vector<float> exact = o.to_host<float>();

    print(
        fmt::format("{} queries, {} keys, {} heads of {}, all in fp32: outputs of blocks of keys, "
                    "merged",
                    queries, keys, heads, D));
    print("relative L2 error against attention in one piece");
    print("  blocks   merged in fp32   merged in bf16");
    double fp32_last = 0, bf16_first = 0, bf16_last = 0;
    for (int64_t blocks = 1; blocks <= 64; blocks *= 2) {
        fp32_last = relative_error(in_blocks(q, k, v, blocks, DType::fp32), exact);
        bf16_last = relative_error(in_blocks(q, k, v, blocks, DType::bf16), exact);
        if (blocks == 2) bf16_first = bf16_last;
        print(fmt::format("  {:>6}   {:>14.1e}   {:>14.1e}", blocks, fp32_last, bf16_last));
    }
    const bool ok = fp32_last <= 5e-6 && bf16_last > bf16_first;
    print(ok ? fmt::format("From 2 to 64 blocks the error in bf16 grows {:.1f} times; in fp32 it "
                           "stays below 5e-6: ok",
                           bf16_last / bf16_first)
             : "WRONG: in fp32 it exceeds 5e-6, or in bf16 it does not grow");
    return ok;
}

}  // namespace ultrascale::context_parallel
