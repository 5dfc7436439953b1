// Attention is split by heads. They are independent, so a rank computes H/tp of them as if there
// were no others: q, k, v are a column linear, o a row linear, and between them nothing is
// communicated.
//
//     tp 4         rank 0             rank 1             rank 2             rank 3
//     H 8, K 8     q 0 1, k v 0 1     q 2 3, k v 2 3     q 4 5, k v 4 5     q 6 7, k v 6 7
//     H 8, K 2     q 0 1, k v 0       q 2 3, k v 0       q 4 5, k v 1       q 6 7, k v 1
//
// The stacked weight of a rank is [q_r; k_r; v_r], not a slice of [q; k; v]. With grouped queries
// (K < H) and tp above K, a key-value head is needed by tp/K ranks: each of them keeps a copy and
// computes its gradient from its own query heads only, so the copies' gradients are summed over
// those ranks once a step. tp can be at most H, because a head is not split.
#pragma once

#include <string>

#include "core/error.h"
#include "core/memory.h"
#include "model/config.h"
#include "model/parameter.h"

namespace ultrascale::tensor_parallel {

// The heads that rank `rank` of `tp` holds.
struct HeadSplit {
    int64_t heads, kv_heads;
    Range q_rows, kv_rows;  // of the whole q, k and v projections
    int copies;             // ranks that hold the same key-value heads
};
inline HeadSplit split_heads(const LlamaConfig& config, int64_t tp, int64_t rank) {
    const int64_t heads = config.heads / tp, copies = std::max<int64_t>(1, tp / config.kv_heads),
                  kv_heads = config.kv_heads * copies / tp;
    const int64_t first = rank / copies * kv_heads, D = config.head_dim;
    return {heads,
            kv_heads,
            {rank * heads * D, (rank + 1) * heads * D},
            {first * D, (first + kv_heads) * D},
            int(copies)};
}

// Returns why the heads cannot be distributed over tp ranks; if they can, nothing.
inline std::string why_no_heads(const LlamaConfig& config, int64_t tp) {
    if (tp > config.heads)
        return fmt::format("there are {}, and a head is not split",
                           format_count(config.heads, "attention head"));
    if (config.heads % tp != 0)
        return fmt::format("{} attention heads cannot be split equally; tp must divide them",
                           config.heads);
    if (config.kv_heads % tp != 0 && tp % config.kv_heads != 0)
        return fmt::format(
            "{} key-value heads can neither be split equally nor copied equally often; tp must "
            "divide their number or be a multiple of it",
            config.kv_heads);
    return "";
}

inline bool is_key_or_value(const std::string& name) {
    return name.ends_with("k_proj.weight") || name.ends_with("v_proj.weight");
}

}  // namespace ultrascale::tensor_parallel
