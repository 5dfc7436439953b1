// What a rank holds and sends: the sum of what the chapters predict for their parts, each for the
// sizes that this rank has of the whole.
//
//     tokens      of a micro-batch: 1/cp; in the residual stream with sequence parallelism 1/tp of
//                 these
//     heads, F, V 1/tp
//     layers      the stage's
//     parameters  as FlatLayout or the list of parameters has them; states 1/(dp cp)
#pragma once

#include "02_zero/predict.h"
#include "03_tensor_parallel/predict.h"
#include "04_context_parallel/predict.h"
#include "composition.h"

namespace ultrascale {

// The sizes with which this rank computes a stage.
inline LocalSizes local_sizes(const Composition& c, const Stage& stage) {
    const Techniques& t = c.techniques;
    LocalSizes sizes = t.tensor.tp > 1 ? local_sizes(c.shape, t.tensor, c.mesh.group("tp").rank())
                                       : local_sizes(c.shape);
    sizes.stream_tokens /= t.axes.cp, sizes.region_tokens /= t.axes.cp;
    sizes.layers = stage.last_layer - stage.first_layer;
    sizes.embedding = stage.embedding, sizes.head = stage.head;
    return sizes;
}

// The stages that this rank holds, by chunk.
inline std::vector<Stage> own_stages(const Composition& c) {
    std::vector<Stage> stages;
    for (int chunk = 0; chunk < c.own.chunks(); ++chunk)
        stages.push_back(c.stages[size_t(c.own.stage(chunk))]);
    return stages;
}

// The passes of ZeRO's units in the order of this rank's actions.
// in_layer: the buffers of a layer's own communication.
inline ZeroWalk walk_actions(Composition& c, int64_t in_layer) {
    if (c.pp().size() == 1)
        return walk_step(c.updates->layout(), c.units, c.techniques.zero, c.shape,
                         c.schedule.micro_batches, in_layer);
    ZeroWalk walk(c.updates->layout(), c.units, c.techniques.zero, c.shape.model.dtype,
                  c.shape.grad_dtype, in_layer);
    walk.begin_micro_batch(!c.techniques.zero.keep_gathered);
    for (const Action& action : c.schedule.actions[size_t(c.pp().rank())]) {
        const std::vector<Unit>& units = c.own.chunk(action.chunk).units();
        const Pass pass = action.kind == ActionKind::forward          ? Pass::forward
                          : action.kind == ActionKind::backward       ? Pass::backward
                          : action.kind == ActionKind::backward_input ? Pass::backward_input
                                                                      : Pass::backward_weight;
        if (pass == Pass::forward)
            for (const Unit& unit : units) walk.pass(unit, pass);
        else
            for (const Unit& unit : units | std::views::reverse) walk.pass(unit, pass);
    }
    walk.begin_micro_batch(true);
    walk.end_micro_batch();
    return walk;
}

// Of a step.
inline Prediction predict(Composition& c) {
    const Techniques& t = c.techniques;
    const StepShape& shape = c.shape;
    const int64_t m = c.schedule.micro_batches;
    const int ring_rank = c.context.ring_rank(), rank = c.pp().rank();
    Prediction p;
    add_flops(p, shape, parameter_count(shape.config));

    // 04: what attention holds besides
    const RingPlan ring(SequenceCut(t.context.layout, t.context.in_ring(), shape.seq),
                        t.context.tails, nullptr);
    const AttentionMemory besides = attention_memory(c.of_heads, t.context, ring, ring_rank);
    const int64_t in_layer = whole_bytes(besides.communication);

    // 01, 02: states, and their sums
    if (const auto* buckets = dynamic_cast<const Buckets*>(c.updates.get())) {
        add_parameters(p, c.own.parameters().local_numel(), shape);
        buckets->sync().add_to(p, shape.grad_dtype);
        for (const auto& parameter : c.own.parameters())
            for (const std::string& group : parameter->also_summed_over)
                if (const Communicator& copies = c.mesh.group(group); copies.size() > 1)
                    p.communication.add(copies, Collective::all_reduce, 1,
                                        parameter->local_numel() * dtype_bytes(shape.grad_dtype));
        if (const Communicator& all = c.mesh.norm_group(); all.size() > 1)
            p.communication.add(all, Collective::all_reduce, 1, 8);
    } else {
        add_to(p, c.updates->layout(), t.zero, shape, m, walk_actions(c, in_layer), c.mesh);
        p.communication.add(c.mesh.group({"dp", "cp", "ep", "pp", "tp"}), Collective::all_reduce, 1,
                            8);
    }
    if (t.zero.stage < 2) p.memory.peak_communication += in_layer;
    p.memory.peak_communication += c.messages.mailboxes();
    if (c.of_loss().size() > 1) p.communication.add(c.of_loss(), Collective::all_reduce, 1, 8);

    // 03, 05: activations, in the order of the schedule
    const double message =
        double(numel(c.messages.shape())) * double(dtype_bytes(c.messages.dtype()));
    std::vector<StageActivations> of_chunk;
    for (const Stage& stage : own_stages(c)) {
        LocalSizes sizes = local_sizes(c, stage);
        sizes.attention_besides = {besides.kept, besides.forward, besides.backward};
        of_chunk.emplace_back(sizes, message);

        // 03, 04: communication inside the layers; with two copies of the model each has half of
        // the micro-batches
        const int64_t A = m / c.schedule.copies();
        StepShape part = shape, heads = c.of_heads;
        part.seq /= t.axes.cp, heads.config.layers = sizes.layers;
        add_regions(p, part, t.tensor,
                    {.layers = sizes.layers,
                     .feed_forwards = sizes.layers,
                     .embedding = stage.embedding,
                     .head = stage.head},
                    A);
        add_attention(p, heads, t.context, A, ring_rank);
    }
    p.memory.peak_activations = std::llround(
        walk_memory(c.schedule, c.plan, rank, [&](const Action& action) -> const StageActivations& {
            return of_chunk[size_t(action.chunk)];
        }).peak);
    add_messages(p.communication, c.plan, rank, std::llround(message));
    return p;
}

}  // namespace ultrascale
