// What a rank of a layout holds, without ranks, tensors or a list of parameters: cheap enough for
// 100,000 layouts. It adds up what the chapters' own formulas give for the rank's sizes:
//
//     parameters, gradients, states    counted; divided as ZeRO's stage says            02, 03, 06
//     gathered and not yet reduced     two units' weights and gradients (stages 2, 3)   02
//     activations                      a stage's five figures, walked in the order of
//                                      the schedule with its messages                   05
//     attention's own buffers          the ring's keys and sums                         04
//
// predict.h gives the same for a run, to the byte; a test compares the two. Ranks along tp, cp, dp
// and ep hold the same except for remainders, so only the place in the pipeline matters: the first
// rank has the most micro-batches in flight, and the embedding; the last one has the logits.
#pragma once

#include <map>
#include <tuple>

#include "02_zero/lab/predict.h"
#include "03_tensor_parallel/lab/predict.h"
#include "04_context_parallel/lab/predict.h"
#include "05_pipeline/3_cut.h"
#include "05_pipeline/lab/predict.h"
#include "06_expert_parallel/lab/predict.h"
#include "plan.h"
#include "rank_parameters.h"

namespace ultrascale::five_d {

// The program that trains. An eager one in PyTorch, like nanotron, holds more than ours
// (published.h):
//
//     SwiGLU    an operation at a time: besides gate and up it keeps silu(gate) and the product
//     loss      logits in fp32, and their softmax in fp32, which becomes their gradient
//     backward  leaves all gradients in bf16; then they are added to the fp32 sums, and freed
//     ZeRO-0    DistributedDataParallel's buckets: the gradients once more, in bf16
enum class Program { ours, eager };

class MemoryModel {
public:
    // `shape` is the whole model's, with the sequence; micro-batch and recomputation are each
    // plan's.
    explicit MemoryModel(const StepShape& shape, Program program = Program::ours)
        : shape_(shape), eager_(program == Program::eager) {}

    // What the rank at a place of the pipeline holds, in bytes. The plan must suit the model.
    struct RankMemory {
        MemoryEstimate memory;  // by category, each at its own highest moment
        int64_t most = 0;       // of all together, at their highest moment
        int pp_rank = 0;
    };
    RankMemory of(const Plan& plan, int pp_rank) {
        const RankParameters e = elements(plan, pp_rank);
        const Buffers buffers = buffers_of(plan, e);
        RankMemory held{states(plan, e), 0, pp_rank};
        const int64_t persists = held.memory.total();
        const bool has_buckets = eager_ && plan.zero == 0 && plan.dp > 1;
        held.memory.peak_communication =
            whole_bytes(buffers.most() + (has_buckets ? gradients_of_backward(e) : 0));
        held.memory.peak_activations = whole_bytes(activations(plan, pp_rank));
        held.most = held.memory.total();
        // ZeRO's buffers come and go, and are small when there are many activations.
        if (plan.zero >= 2 && plan.pp == 1 && shape_.config.experts.count == 0)
            held.most = persists + whole_bytes(most_together(moments_of(plan), buffers));
        return held;
    }
    // Returns the memory at the place that needs most.
    RankMemory worst(const Plan& plan) {
        RankMemory worst = of(plan, 0);
        for (const int pp_rank : {1, int(plan.pp) - 1}) {
            if (pp_rank <= 0 || pp_rank >= plan.pp) continue;
            const RankMemory other = of(plan, pp_rank);
            if (other.most > worst.most) worst = other;
        }
        return worst;
    }
    // Returns what persists on the first rank: a lower bound that is cheap to compute.
    int64_t at_least(const Plan& plan) { return states(plan, elements(plan, 0)).total(); }

    // Returns the layers of each stage, in the model's order.
    const std::vector<Stage>& stages(const Plan& plan) {
        std::vector<Stage>& found = stages_[plan.pp * plan.chunks];
        if (found.empty()) {
            StepShape shape = shape_;
            shape.model.recompute = Recompute::none;
            found = cut(shape, int(plan.pp * plan.chunks), "auto");
        }
        return found;
    }

    RankParameters elements(const Plan& plan, int pp_rank) {
        return rank_parameters(shape_.config, plan, stages(plan), pp_rank);
    }

private:
    struct OfStep {
        Schedule schedule;
        MessagePlan messages;
    };
    // After the warm-up a rank repeats the same actions and holds no more, so four rounds of the
    // pipeline tell as much as hundreds.
    const OfStep& step(const Plan& plan) {
        const int m = int(std::min(plan.micro_batches, 4 * plan.pp));
        const auto key = std::tuple(plan.pp, m, plan.chunks, plan.interleaves());
        const auto found = steps_.find(key);
        if (found != steps_.end()) return found->second;
        Schedule schedule = plan_schedule(plan, m);
        MessagePlan messages(schedule);
        return steps_.emplace(key, OfStep{std::move(schedule), std::move(messages)}).first->second;
    }

    MemoryEstimate states(const Plan& plan, const RankParameters& e) const {
        const double value = double(dtype_bytes(shape_.model.dtype)),
                     grad = double(dtype_bytes(shape_.grad_dtype)),
                     states = double(optimizer_bytes(shape_.model.dtype)),
                     shard = e.others / double(plan.sharing() * plan.cp * plan.ep) +
                             e.experts / double(plan.sharing() * plan.cp);
        MemoryEstimate m;
        m.parameters = whole_bytes((plan.zero == 3 ? shard : e.all()) * value);
        m.gradients = whole_bytes((plan.zero >= 2 ? shard : e.all()) * grad);
        m.optimizer = whole_bytes((plan.zero >= 1 ? shard : e.all()) * states);
        return m;
    }

    // Buffers of communication, in bytes, at the moments that 02 distinguishes: in the embedding's
    // passes; in the loss; in the head's backward, when its gradients are in their buffer; in the
    // last layer's, when its own gradients are in theirs while the head's are being reduced; and in
    // any other layer's.
    struct Buffers {
        double embedding = 0, loss = 0, head = 0, last = 0, layer = 0;
        double most() const { return std::max({embedding, loss, head, last, layer}); }
    };
    // Returns ZeRO's buffers, and in layers attention's own, too. Stage 3 has a pass's weights and
    // the next one's, or, with --keep-gathered on, all of them in the end. From the second
    // micro-batch on it also holds a shard of the gradients, which is to be added.
    Buffers buffers_of(const Plan& plan, const RankParameters& e) {
        Buffers b;
        if (plan.zero >= 2) {
            const double weight = plan.zero == 3 ? double(dtype_bytes(shape_.model.dtype)) : 0,
                         kept = plan.states.keep_gathered ? e.all() * weight : 0,
                         whole = kept > 0 ? 0 : weight,
                         ranks = double(plan.sharing() * plan.cp * plan.ep),
                         grad = double(dtype_bytes(shape_.grad_dtype)),
                         added = grad * (plan.micro_batches > 1 ? 1 + 1 / ranks : 1),
                         layer = e.largest_layer, head = e.head > 0 ? e.head : layer,
                         first = e.embedding > 0 ? e.embedding + layer : 0;
            b.embedding = e.embedding * whole + first * added;
            b.loss = head * whole;
            b.head = (head + layer) * whole + head * grad;
            b.last = 2 * layer * whole + (layer + head) * added;
            b.layer = (layer + std::max(layer, e.embedding)) * whole + 2 * layer * added;
            for (double* moment : {&b.embedding, &b.loss, &b.head, &b.last, &b.layer})
                *moment += kept;
        }
        const double attention = attention_of(plan).communication;
        b.last += attention, b.layer += attention;
        return b;
    }
    // Activations, in bytes, at the moments at which these buffers differ, with all layers here.
    struct Moments {
        double embedding = 0, loss = 0, head = 0, layers = 0;
        double kept_per_layer = 0;  // what forward keeps of one layer
    };
    static double most_together(const Moments& m, const Buffers& b) {
        return std::max({m.embedding + b.embedding, m.loss + b.loss, m.head + b.head,
                         m.layers + b.last, m.layers - m.kept_per_layer + b.layer});
    }
    const Moments& moments_of(const Plan& plan) {
        const auto key = std::tuple(plan.tp, plan.cp, plan.micro_batch, plan.recompute);
        const auto found = moments_.find(key);
        if (found != moments_.end()) return found->second;
        LocalSizes sizes = sizes_of(plan, stages(plan).front());
        Moments m;
        for (const ActivationMoment& moment : activation_moments(sizes)) {
            const bool head = moment.when.find("output head") != std::string::npos;
            double& most = moment.when == "in the embedding" ? m.embedding
                           : moment.when == "in the loss"    ? m.loss
                           : head                            ? m.head
                                                             : m.layers;
            most = std::max(most, moment.bytes());
        }
        sizes.layers = 1, sizes.embedding = sizes.head = false;
        m.kept_per_layer = kept_activations(sizes).after_forward;
        return moments_.emplace(key, m).first->second;
    }

    const AttentionMemory& attention_of(const Plan& plan) {
        const ContextOptions& o = plan.context;
        const auto key = std::tuple(plan.tp, plan.cp, plan.micro_batch, int(o.variant),
                                    int(o.layout), o.ulysses, o.bidirectional, int(o.backward));
        const auto found = attention_.find(key);
        if (found != attention_.end()) return found->second;
        AttentionMemory memory;
        if (plan.cp > 1) {
            const Techniques t = plan.techniques();
            StepShape heads = with_heads_of(shape_, int(plan.tp), 0);
            heads.micro_batch = plan.micro_batch;
            memory =
                attention_memory(heads, t.context, plan_without_documents(shape_, t.context), 0);
        }
        return attention_.emplace(key, memory).first->second;
    }

    StepShape shape_of(const Plan& plan) const {
        StepShape shape = shape_;
        shape.micro_batch = plan.micro_batch, shape.model.recompute = plan.recompute;
        return shape;
    }
    // The sizes with which the rank computes a stage.
    LocalSizes sizes_of(const Plan& plan, const Stage& stage) {
        const StepShape shape = shape_of(plan);
        LocalSizes sizes =
            plan.tp > 1 ? local_sizes(shape, plan.techniques().tensor, 0) : local_sizes(shape);
        sizes.stream_tokens /= plan.cp, sizes.region_tokens /= plan.cp;
        sizes.layers = stage.last_layer - stage.first_layer;
        sizes.embedding = stage.embedding, sizes.head = stage.head;
        const AttentionMemory& besides = attention_of(plan);
        sizes.attention_besides = {besides.kept, besides.forward, besides.backward};
        if (eager_) {
            const double dy = token_bytes(sizes) * double(sizes.hidden),
                         F = token_bytes(sizes) * double(sizes.features);
            // The gradients of the product, of silu(gate) and of up, when the product is freed.
            sizes.feed_forward = FeedForwardActivations{
                .kept = 4 * F, .forward = 4 * F + dy, .backward = 6 * F + dy};
        }
        return sizes;
    }
    // The bytes of one number for each token in a layer's linears.
    double token_bytes(const LocalSizes& sizes) const {
        return double(sizes.sequences * sizes.region_tokens * dtype_bytes(shape_.model.dtype));
    }
    // The bytes of the gradients that an eager backward leaves.
    double gradients_of_backward(const RankParameters& e) const {
        return e.all() * double(dtype_bytes(shape_.model.dtype));
    }
    // The five figures of a stage and its message, as chapters 03 to 06 compute them.
    const StageActivations& stage_of(const Plan& plan, const Stage& stage) {
        const auto key =
            std::tuple(plan.tp, plan.cp, plan.ep, plan.micro_batch, plan.recompute,
                       stage.last_layer - stage.first_layer, stage.embedding, stage.head,
                       shape_.config.experts.count > 0 ? stage.first_layer : 0);
        const auto found = stage_bytes_.find(key);
        if (found != stage_bytes_.end()) return found->second;
        const LocalSizes sizes = sizes_of(plan, stage);
        StageActivations bytes;
        if (shape_.config.experts.count > 0) {
            const StepShape shape = shape_of(plan);
            const Techniques t = plan.techniques();
            const int64_t tokens = shape.micro_batch * sizes.stream_tokens;
            static_cast<StageBytes&>(bytes) = stage_activations(
                sizes, shape, t.experts, balanced_rows(shape.config, t.experts, tokens),
                stage.first_layer);
        } else {
            static_cast<StageBytes&>(bytes) = stage_bytes(sizes);
        }
        if (eager_ && stage.head) {  // logits and softmax in fp32, for logits in bf16
            const double logits = token_bytes(sizes) * double(sizes.vocabulary);
            bytes.at_forward += 3 * logits, bytes.after_forward += logits;
            bytes.at_backward += 2 * logits;  // the gradient in fp32 and in bf16
        }
        bytes.message = double(plan.micro_batch * sizes.stream_tokens * sizes.hidden *
                               dtype_bytes(shape_.model.dtype));
        return stage_bytes_.emplace(key, bytes).first->second;
    }

    double activations(const Plan& plan, int pp_rank) {
        std::vector<StageActivations> chunks;
        for (int chunk = 0; chunk < plan.chunks; ++chunk)
            chunks.push_back(stage_of(plan, stages(plan)[size_t(chunk * plan.pp + pp_rank)]));
        if (eager_)
            for (StageActivations& chunk : chunks)
                chunk.at_backward =
                    std::max(chunk.at_backward, gradients_of_backward(elements(plan, pp_rank)));
        if (plan.pp == 1 && !plan.interleaves()) return chunks[0].most();
        const OfStep& step_plan = step(plan);
        return walk_memory(step_plan.schedule, step_plan.messages, pp_rank,
                           [&](const Action& action) -> const StageActivations& {
                               return chunks[size_t(action.chunk)];
                           })
            .peak;
    }

    StepShape shape_;
    bool eager_;
    std::map<int64_t, std::vector<Stage>> stages_;
    std::map<std::tuple<int64_t, int, int, bool>, OfStep> steps_;
    std::map<std::tuple<int64_t, int64_t, int64_t, int, int, int, bool, int>, AttentionMemory>
        attention_;
    std::map<std::tuple<int64_t, int64_t, int64_t, Recompute>, Moments> moments_;
    std::map<
        std::tuple<int64_t, int64_t, int64_t, int64_t, Recompute, int64_t, bool, bool, int64_t>,
        StageActivations>
        stage_bytes_;
};

}  // namespace ultrascale::five_d
