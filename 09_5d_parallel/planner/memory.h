// What a rank of a layout holds, without ranks, tensors or a list of parameters: cheap enough for
// 100,000 layouts. It puts together what the chapters' own formulas give for the rank's sizes:
//
//     parameters, gradients, states    counted; divided as ZeRO's stage says            02, 03, 06
//     gathered and not yet reduced     two units' weights and gradients (stages 2, 3)   02
//     activations                      a stage's five figures, walked in the order of
//                                      the schedule with its messages                   05
//     attention's own buffers          the ring's keys and sums                         04
//
// predict.h gives the same for a run, to the byte; a test compares both. Ranks along tp, cp, dp and
// ep hold the same but for remainders, so that only the place in the pipeline matters: the first
// rank has most micro-batches in flight, and the embedding; the last one has the logits.
#pragma once

#include <map>
#include <tuple>

#include "../predict.h"
#include "plan.h"

namespace ultrascale {

class MemoryModel {
public:
    // `shape`: of the whole model, with the sequence; its micro-batch and recomputation are each
    // plan's.
    explicit MemoryModel(const StepShape& shape) : shape_(shape) {}

    // What rank `place` of the pipeline holds at most. The plan is one that the model can be cut
    // by.
    MemoryEstimate of(const Plan& plan, int place) {
        MemoryEstimate m = states(plan, place);
        const AttentionMemory& attention = attention_of(plan);
        if (plan.zero < 2) m.peak_communication += whole_bytes(attention.communication);
        m.peak_activations = whole_bytes(activations(plan, place));
        return m;
    }
    // The rank that needs most.
    struct Worst {
        MemoryEstimate memory;
        int place = 0;
    };
    Worst worst(const Plan& plan) {
        Worst worst{of(plan, 0), 0};
        for (const int place : {1, int(plan.pp) - 1}) {
            if (place <= 0 || place >= plan.pp) continue;
            const MemoryEstimate other = of(plan, place);
            if (other.total() > worst.memory.total()) worst = {other, place};
        }
        return worst;
    }
    // What persists on the first rank: a bound that needs no walk.
    int64_t at_least(const Plan& plan) {
        const MemoryEstimate m = states(plan, 0);
        return m.parameters + m.gradients + m.optimizer;
    }

    // Layers of each stage, in the model's order.
    const std::vector<Stage>& stages(const Plan& plan) {
        std::vector<Stage>& found = stages_[plan.pp * plan.chunks];
        if (found.empty()) {
            StepShape shape = shape_;
            shape.model.recompute = Recompute::none;
            found = cut(shape, int(plan.pp * plan.chunks), "auto");
        }
        return found;
    }

    // Elements of the parameters that a rank has of these stages: of experts, and of all else.
    struct Elements {
        double others = 0, experts = 0, largest_layer = 0, head = 0, embedding = 0;
        double all() const { return others + experts; }
    };
    Elements elements(const Plan& plan, int place) {
        const LlamaConfig& c = shape_.config;
        const HeadSplit heads = split_heads(c, plan.tp, 0);
        const double h = double(c.hidden), D = double(c.head_dim),
                     vocabulary = double(vocabulary_shard(c.vocab, plan.tp, 0).size()) * h;
        const double attention = 2 * h * double(heads.q_rows.size() + heads.kv_rows.size()) +
                                 2 * h + (c.head_norms ? 2 * D : 0);
        Elements e;
        for (int chunk = 0; chunk < plan.chunks; ++chunk) {
            const Stage& stage = stages(plan)[size_t(chunk * plan.pp + place)];
            for (int64_t layer = stage.first_layer; layer < stage.last_layer; ++layer) {
                double others = attention, experts = 0;
                if (c.has_experts(layer)) {
                    const double one = 3 * h * double(c.experts.ffn), E = double(c.experts.count);
                    others += E * h + double(c.experts.shared) * one;
                    experts = E / double(plan.ep) * one;
                } else {
                    others += 3 * h * double(c.ffn / plan.tp);
                }
                e.others += others, e.experts += experts;
                e.largest_layer = std::max(e.largest_layer, others + experts);
            }
            if (stage.embedding) e.embedding = vocabulary;
            // A tied head on the embedding's rank is the same weight.
            if (stage.head) e.head = h + (c.tied && e.embedding > 0 ? 0 : vocabulary);
        }
        e.others += e.embedding + e.head;
        return e;
    }

private:
    struct OfStep {
        Schedule schedule;
        MessagePlan messages;
    };
    // After the warm-up a rank does the same again and again, and holds no more: four rounds of
    // the pipeline tell as much as hundreds.
    const OfStep& step(const Plan& plan) {
        const int m = int(std::min(plan.micro_batches, 4 * plan.pp));
        const auto key = std::tuple(plan.pp, m, plan.chunks);
        const auto found = steps_.find(key);
        if (found != steps_.end()) return found->second;
        Schedule schedule = plan_schedule(plan, m);
        MessagePlan messages(schedule);
        return steps_.emplace(key, OfStep{std::move(schedule), std::move(messages)}).first->second;
    }

    MemoryEstimate states(const Plan& plan, int place) {
        const Elements e = elements(plan, place);
        const double value = double(dtype_bytes(shape_.model.dtype)),
                     grad = double(dtype_bytes(shape_.grad_dtype)),
                     states = double(optimizer_bytes(shape_.model.dtype)),
                     ranks = double(plan.dp * plan.cp * plan.ep),
                     of_experts = double(plan.dp * plan.cp);
        const double shard = e.others / ranks + e.experts / of_experts;
        MemoryEstimate m;
        m.parameters = whole_bytes((plan.zero == 3 ? shard : e.all()) * value);
        m.gradients = whole_bytes((plan.zero >= 2 ? shard : e.all()) * grad);
        m.optimizer = whole_bytes((plan.zero >= 1 ? shard : e.all()) * states);
        if (plan.zero < 2) return m;
        // 02's walk at its highest moment: where backward begins, the head's gradients are in
        // their buffer; at a layer, its own are, while those of the unit behind it are being
        // reduced. Stage 3 has this unit's weights and the next one's.
        // From the second micro-batch on a shard of each is held besides, to be added.
        const bool whole = plan.zero == 3;
        const double layer = e.largest_layer, head = e.head > 0 ? e.head : layer,
                     added = 1 + (plan.micro_batches > 1 ? 1 / ranks : 0);
        const double next = std::max(layer, e.embedding);
        const double at_head = (whole ? head + layer : 0) * value + head * grad,
                     at_last = (whole ? 2 * layer : 0) * value + (layer + head) * added * grad,
                     at_layer = (whole ? layer + next : 0) * value + 2 * layer * added * grad,
                     at_first = (whole ? e.embedding : 0) * value +
                                (e.embedding > 0 ? e.embedding + layer : 0) * added * grad;
        m.peak_communication = whole_bytes(std::max({at_head, at_last, at_layer, at_first}) +
                                           attention_of(plan).communication);
        return m;
    }

    const AttentionMemory& attention_of(const Plan& plan) {
        const auto key = std::tuple(plan.tp, plan.cp, plan.micro_batch, plan.gathers_keys);
        const auto found = attention_.find(key);
        if (found != attention_.end()) return found->second;
        AttentionMemory memory;
        if (plan.cp > 1) {
            const Techniques t = plan.techniques();
            StepShape heads = with_heads_of(shape_, int(plan.tp), 0);
            heads.micro_batch = plan.micro_batch;
            const ContextOptions& o = t.context;
            const RingPlan ring(SequenceCut(o.layout, o.in_ring(), shape_.seq), o.tails, nullptr);
            memory = attention_memory(heads, t.context, ring, 0);
        }
        return attention_.emplace(key, memory).first->second;
    }

    // The five figures of a stage and its message, as 03 to 06 have them.
    const StageActivations& stage_of(const Plan& plan, const Stage& stage) {
        const auto key =
            std::tuple(plan.tp, plan.cp, plan.ep, plan.micro_batch, plan.recompute,
                       stage.last_layer - stage.first_layer, stage.embedding, stage.head,
                       shape_.config.experts.count > 0 ? stage.first_layer : 0);
        const auto found = of_stage_.find(key);
        if (found != of_stage_.end()) return found->second;
        StepShape shape = shape_;
        shape.micro_batch = plan.micro_batch, shape.model.recompute = plan.recompute;
        const Techniques t = plan.techniques();
        LocalSizes sizes = plan.tp > 1 ? local_sizes(shape, t.tensor, 0) : local_sizes(shape);
        sizes.stream_tokens /= plan.cp, sizes.region_tokens /= plan.cp;
        sizes.layers = stage.last_layer - stage.first_layer;
        sizes.embedding = stage.embedding, sizes.head = stage.head;
        const AttentionMemory& besides = attention_of(plan);
        sizes.attention_besides = {besides.kept, besides.forward, besides.backward};
        StageActivations bytes;
        if (shape.config.experts.count > 0) {
            const int64_t tokens = shape.micro_batch * sizes.stream_tokens;
            static_cast<StageBytes&>(bytes) = stage_activations(
                sizes, shape, t.experts, balanced_rows(shape.config, t.experts, tokens),
                stage.first_layer);
        } else {
            static_cast<StageBytes&>(bytes) = stage_bytes(sizes);
        }
        bytes.message = double(shape.micro_batch * sizes.stream_tokens * sizes.hidden *
                               dtype_bytes(shape.model.dtype));
        return of_stage_.emplace(key, bytes).first->second;
    }

    double activations(const Plan& plan, int place) {
        std::vector<const StageActivations*> chunks;
        for (int chunk = 0; chunk < plan.chunks; ++chunk)
            chunks.push_back(&stage_of(plan, stages(plan)[size_t(chunk * plan.pp + place)]));
        if (plan.pp == 1) return chunks[0]->most();
        const OfStep& of_step = step(plan);
        return walk_memory(of_step.schedule, of_step.messages, place,
                           [&](const Action& action) -> const StageActivations& {
                               return *chunks[size_t(action.chunk)];
                           })
            .peak;
    }

    StepShape shape_;
    std::map<int64_t, std::vector<Stage>> stages_;
    std::map<std::tuple<int64_t, int, int>, OfStep> steps_;
    std::map<std::tuple<int64_t, int64_t, int64_t, bool>, AttentionMemory> attention_;
    std::map<
        std::tuple<int64_t, int64_t, int64_t, int64_t, Recompute, int64_t, bool, bool, int64_t>,
        StageActivations>
        of_stage_;
};

}  // namespace ultrascale
