// How many parameters a rank of a layout has, counted from the model's sizes.
#pragma once

#include "03_tensor_parallel/3_attention_heads.h"
#include "03_tensor_parallel/3_vocabulary_embedding.h"
#include "05_pipeline/3_cut.h"
#include "plan.h"

namespace ultrascale::five_d {

// Of a rank's stages: parameters of experts, and of all else.
struct RankParameters {
    double others = 0, experts = 0, largest_layer = 0, head = 0, embedding = 0;
    double whole = 0;  // those of `others` that each rank of tp has whole
    double all() const { return others + experts; }
};

// `stages` are all stages of the plan, in the model's order; `pp_rank` is the rank's place in the
// pipeline. The plan must suit the model.
inline RankParameters rank_parameters(const LlamaConfig& c, const Plan& plan,
                                      const std::vector<Stage>& stages, int pp_rank) {
    const HeadSplit heads = split_heads(c, plan.tp, 0);
    const double h = double(c.hidden), D = double(c.head_dim),
                 vocabulary = double(vocabulary_shard(c.vocab, plan.tp, 0).size()) * h;
    const double attention = 2 * h * double(heads.q_rows.size() + heads.kv_rows.size()) + 2 * h +
                             (c.head_norms ? 2 * D : 0);
    RankParameters e;
    for (int chunk = 0; chunk < plan.chunks; ++chunk) {
        const Stage& stage = stages[size_t(chunk * plan.pp + pp_rank)];
        for (int64_t layer = stage.first_layer; layer < stage.last_layer; ++layer) {
            double others = attention, experts = 0;
            e.whole += 2 * h;
            if (c.has_experts(layer)) {
                const double one = 3 * h * double(c.experts.ffn), E = double(c.experts.count);
                const double routing = E * h + double(c.experts.shared) * one;
                others += routing, e.whole += routing;
                experts = E / double(plan.ep) * one;
            } else {
                others += 3 * h * double(c.ffn / plan.tp);
            }
            e.others += others, e.experts += experts;
            e.largest_layer = std::max(e.largest_layer, others + experts);
        }
        if (stage.embedding) e.embedding = vocabulary;
        if (stage.head) e.whole += h;
        // A tied head on the embedding's rank shares its weight.
        if (stage.head) e.head = h + (c.tied && e.embedding > 0 ? 0 : vocabulary);
    }
    e.others += e.embedding + e.head;
    return e;
}

}  // namespace ultrascale::five_d
