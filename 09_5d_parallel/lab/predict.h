// What a rank holds and sends: the sum of the chapters' predictions for their parts, each with the
// sizes that this rank has.
//
//     tokens      of a micro-batch: 1/cp; in the residual stream with sequence parallelism 1/tp of
//                 these
//     heads, F, V 1/tp
//     layers      the stage's
//     parameters  as FlatLayout or the list of parameters has them; with ZeRO states 1/(dp cp) of
//                 the experts', 1/(dp cp ep) of all others
#pragma once

#include "../4_composition.h"
#include "01_data_parallel/lab/predict.h"
#include "02_zero/lab/predict.h"
#include "03_tensor_parallel/lab/predict.h"
#include "04_context_parallel/lab/predict.h"
#include "05_pipeline/lab/predict.h"
#include "06_expert_parallel/lab/predict.h"

namespace ultrascale::five_d {

// The sizes with which this rank computes a stage.
inline LocalSizes local_sizes(const Composition& c, const Stage& stage) {
    const Techniques& t = c.techniques;
    LocalSizes sizes = t.tensor.tp > 1 ? local_sizes(c.shape, t.tensor, c.mesh.group("tp").rank())
                                       : local_sizes(c.shape);
    sizes.model.recompute = c.shape.model.recompute.from(stage.first_layer);
    // exercise 09.4 begin: what this rank has of tokens, layers, embedding and head
    sizes.stream_tokens /= t.axes.cp, sizes.region_tokens /= t.axes.cp;
    sizes.layers = stage.last_layer - stage.first_layer;
    sizes.embedding = stage.embedding, sizes.head = stage.head;
    return sizes;
    // exercise 09.4 end
}

// The stages that this rank holds, by chunk.
inline std::vector<Stage> own_stages(const Composition& c) {
    std::vector<Stage> stages;
    for (int chunk = 0; chunk < c.own.chunks(); ++chunk)
        stages.push_back(c.stages[size_t(c.own.stage(chunk))]);
    return stages;
}

// With documents: what attention holds for each micro-batch (documents.h). Without them it is
// empty, because all micro-batches are alike.
using DocumentMemory = std::map<int, AttentionMemory>;

// What attention holds for a micro-batch, beyond what plain attention would.
inline AttentionMemory attention_memory(const Composition& c, int micro_batch = 0,
                                        const DocumentMemory& documents = {}) {
    const auto seen = documents.find(micro_batch);
    if (seen != documents.end()) return seen->second;
    const ContextOptions& o = c.techniques.context;
    return attention_memory(c.local_heads_shape, o, plan_without_documents(c.shape, o),
                            c.context.ring_rank());
}

// The buffers of a layer's own communication, in bytes.
inline InLayer buffers_in_layer(const Composition& c, int micro_batch = 0,
                                const DocumentMemory& documents = {}) {
    const AttentionMemory m = attention_memory(c, micro_batch, documents);
    return {whole_bytes(m.communication_forward), whole_bytes(m.communication)};
}

// Walks through the passes of ZeRO's units, in the order of this rank's actions.
inline ZeroWalk walk_actions(Composition& c, const FlatLayout& layout,
                             const DocumentMemory& documents = {}) {
    const bool one_rank = c.pp().size() == 1,  // one micro-batch after the other
        alike = documents.empty();
    const InLayer in_layer = alike ? buffers_in_layer(c) : InLayer();
    if (one_rank && alike)
        return walk_step(layout, c.units, c.techniques.zero, c.shape, c.schedule.micro_batches,
                         in_layer);
    ZeroWalk walk(layout, c.units, c.techniques.zero, c.shape.model.dtype, c.shape.grad_dtype,
                  in_layer);
    walk.begin_micro_batch(!c.techniques.zero.keep_gathered);
    for (const Action& action : c.schedule.actions[size_t(c.pp().rank())]) {
        const std::vector<Unit>& units = c.own.chunk(action.chunk).units();
        const Pass pass = action.kind == ActionKind::forward          ? Pass::forward
                          : action.kind == ActionKind::backward       ? Pass::backward
                          : action.kind == ActionKind::backward_input ? Pass::backward_input
                                                                      : Pass::backward_weight;
        if (one_rank && pass == Pass::forward)
            walk.begin_micro_batch(action.micro_batch + 1 == c.schedule.micro_batches);
        if (!alike) walk.set_in_layer(buffers_in_layer(c, action.micro_batch, documents));
        if (pass == Pass::forward)
            for (const Unit& unit : units) walk.pass(unit, pass);
        else
            for (const Unit& unit : units | std::views::reverse) walk.pass(unit, pass);
        if (one_rank && pass == Pass::backward) walk.end_micro_batch();
    }
    walk.begin_micro_batch(true);
    walk.end_micro_batch();
    return walk;
}

// The most that ZeRO's units and the layers' own communication hold together, in bytes.
inline int64_t peak_buffers(Composition& c, const DocumentMemory& documents = {}) {
    if (c.techniques.zero.stage >= 2)
        return walk_actions(c, {c.units, c.mesh, c.techniques.zero.cut}, documents).peak();
    int64_t most = buffers_in_layer(c, 0, documents).backward;
    for (const auto& [micro_batch, memory] : documents)
        most = std::max(most, buffers_in_layer(c, micro_batch, documents).backward);
    return most;
}

// The bytes of a message between stages.
inline double message_bytes(const Composition& c) {
    return double(numel(c.messages.shape())) * double(dtype_bytes(c.messages.dtype()));
}

// The most that this rank's activations take in a step, in the order of its actions. `rows`: each
// micro-batch's rows in the layers with experts; none if this rank of a pipeline has only dense
// layers.
inline double peak_activations(Composition& c,
                               const std::map<int, DispatchStatistics::ByLayer>& rows,
                               const DocumentMemory& documents = {}) {
    const std::vector<Stage> stages = own_stages(c);
    const bool differ = c.experts || !documents.empty();  // micro-batches do
    std::map<std::pair<int, int>, StageActivations> of;   // by micro-batch and chunk
    const auto bytes_of = [&](const Action& action) -> const StageActivations& {
        const std::pair key(differ ? action.micro_batch : 0, action.chunk);
        if (const auto found = of.find(key); found != of.end()) return found->second;
        const Stage& stage = stages[size_t(action.chunk)];
        LocalSizes sizes = local_sizes(c, stage);
        const AttentionMemory besides = attention_memory(c, key.first, documents);
        sizes.attention_besides = {besides.kept, besides.forward, besides.backward};
        const auto came = rows.find(key.first);
        const StageBytes bytes =
            c.experts ? stage_activations(
                            sizes, c.shape, c.techniques.experts,
                            came == rows.end() ? DispatchStatistics::ByLayer() : came->second,
                            stage.first_layer)
                      : stage_bytes(sizes);
        return of[key] = {bytes, message_bytes(c)};
    };
    return walk_memory(c.schedule, c.plan, c.pp().rank(), bytes_of).peak;
}

// Predicts a step. With experts it leaves out the rows that travel and the activations, which
// depend on the rows (ExpertRun).
inline Prediction predict(Composition& c) {
    const Techniques& t = c.techniques;
    const StepShape& shape = c.shape;
    const int64_t m = c.schedule.micro_batches;
    const int ring_rank = c.context.ring_rank(), rank = c.pp().rank();
    Prediction p;
    add_flops(p, shape, active_parameter_count(shape.config));
    for (const TensorPart& buffer : c.own.parameters().buffers())
        p.memory.parameters += buffer.tensor.bytes();

    // 04: buffers of the layers' own communication
    const int64_t in_layer = buffers_in_layer(c).backward;

    // 01, 02: states, and their sums
    if (t.zero.stage == 0) {
        add_parameters(p, c.own.parameters().local_numel(), shape);
        const BucketSync sync(c.own.parameters(), c.mesh, c.bucket_elements());
        add_sums(p, sync, c.own.parameters(), c.mesh, shape.grad_dtype);
        for (const auto& parameter : c.own.parameters())
            for (const std::string& group : parameter->replica_groups)
                if (const Communicator& copies = c.mesh.group(group); copies.size() > 1)
                    p.communication.add(copies, Collective::all_reduce, 1,
                                        parameter->local_numel() * dtype_bytes(shape.grad_dtype));
        p.communication.add_scalar_sum(c.mesh.norm_group());
    } else {
        const FlatLayout layout(c.units, c.mesh, t.zero.cut);
        add_to(p, layout, t.zero, shape, m, walk_actions(c, layout), c.mesh);
        p.communication.add(c.mesh.norm_group_of_shards(), Collective::all_reduce, 1,
                            2 * sizeof(double));
    }
    p.memory.peak_communication += c.messages.mailboxes();
    // exercise 09.3 begin: two terms: the buffers of layers, the sum of the loss
    if (t.zero.stage < 2) p.memory.peak_communication += in_layer;
    if (c.loss_group().size() > 1)
        p.communication.add(c.loss_group(), Collective::all_reduce, 1, 2 * sizeof(double));
    // exercise 09.3 end

    // 03, 04, 06: communication inside the layers. If there are two copies of the model, each takes
    // half of the micro-batches.
    const int64_t A = m / c.schedule.copies();
    for (const Stage& stage : own_stages(c)) {
        StepShape part = shape, heads = c.local_heads_shape;
        part.seq /= t.axes.cp, heads.config.layers = stage.last_layer - stage.first_layer;
        part.model.recompute = heads.model.recompute =
            shape.model.recompute.from(stage.first_layer);
        int64_t with_experts = 0;
        for (int64_t layer = stage.first_layer; layer < stage.last_layer; ++layer)
            with_experts += shape.config.has_experts(layer);
        add_regions(p, part, t.tensor,
                    {.layers = heads.config.layers,
                     .feed_forwards = heads.config.layers - with_experts,
                     .embedding = stage.embedding,
                     .head = stage.head},
                    A);
        add_attention(p, heads, t.context, A, ring_rank);
        if (c.experts)
            add_count_sums(p.communication, shape, t.experts, c.experts->balance(),
                           A * with_experts);
    }
    if (c.experts) add_loads(p.communication, t.experts, c.experts->balance(), c.experts->all());

    add_messages(p.communication, c.plan, rank, std::llround(message_bytes(c)));
    // 03, 05: without experts all micro-batches are alike
    if (!c.experts) p.memory.peak_activations = whole_bytes(peak_activations(c, {}));
    return p;
}

// Predicts a step in which all experts get equally many rows.
inline Prediction predict_balanced(Composition& c) {
    Prediction p = predict(c);
    if (!c.experts) return p;
    const StepShape& shape = c.shape;
    const int64_t tokens = c.experts->tokens(shape.micro_batch * shape.seq);
    const DispatchStatistics::ByLayer rows =
        balanced_rows(shape.config, c.techniques.experts, tokens);
    std::map<int, DispatchStatistics::ByLayer> rows_by_micro_batch;
    for (int m = 0; m < c.schedule.micro_batches; ++m) rows_by_micro_batch[m] = rows;
    p.memory.peak_activations = whole_bytes(peak_activations(c, rows_by_micro_batch));
    for (const Stage& stage : own_stages(c))
        for (int64_t layer = stage.first_layer; layer < stage.last_layer; ++layer)
            if (rows.contains(layer))
                add_balanced_rows(p.communication, shape, c.techniques.experts, tokens, layer,
                                  c.schedule.micro_batches);
    return p;
}

}  // namespace ultrascale::five_d
