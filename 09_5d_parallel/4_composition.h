// The order in which the techniques are put together. Each technique is its own chapter's code;
// this file only says who wraps whom.
//
//     what a layer computes      the innermost first: how a product multiplies (08), which rows or
//                                columns of it a rank has (03), whose keys its queries meet (04),
//                                whose experts its tokens go to (06)
//     which layers a rank has    the stages of a schedule (05)
//     who sums and updates       all that a rank has, as flat units in shards (02), or in buckets
//                                (01)
//
// None of them knows another one. They meet in three descriptions: a Parameter says over which axes
// it is split and summed (mesh.h); a Batch says which tokens a rank has; a Unit says what a pass
// reads and which gradients it completes.
#pragma once

#include "02_zero/9_stages.h"
#include "03_tensor_parallel/8_tensor_parallel.h"
#include "04_context_parallel/9_context_parallel.h"
#include "05_pipeline/3_cut.h"
#include "05_pipeline/4_executor/executor.h"
#include "06_expert_parallel/expert_parallel.h"
#include "08_mixed_precision/fp8_parts.h"
#include "2_techniques.h"
#include "3_buckets.h"

namespace ultrascale::five_d {

// The grid's axes, outermost first. With --shard-size dp is two of them.
inline std::vector<Mesh::Axis> mesh_axes(const Techniques& t) {
    std::vector<Mesh::Axis> all;
    for (const Mesh::Axis& axis : t.axes.outermost_first())
        for (const Mesh::Axis& part :
             axis.name == "dp" ? data_axes(axis.size, t.zero) : std::vector<Mesh::Axis>{axis})
            all.push_back(part);
    return all;
}

class Composition {
public:
    // All ranks of `world` call it, and `world` must outlive it. Parameters are described, but have
    // no storage before updates->start().
    Composition(const Options& options, const StepShape& step_shape, const Techniques& chosen,
                const Communicator& world = Communicator::world())
        : shape(step_shape),
          techniques(chosen),
          mesh(world, mesh_axes(chosen)),
          schedule(chosen.make_schedule(int(options.grad_accum))),
          stages(cut(shape, schedule.stages, chosen.split)),
          tensor(shape.config, chosen.tensor, mesh),
          local_heads_shape(with_heads_of(shape, chosen.tensor.tp, mesh.group("tp").rank())),
          context(local_heads_shape.config, chosen.context, shape.seq, mesh.group("cp")),
          tokens(shared_tokens()),
          fp8(chosen.precision),
          own(shape.config, shape.model, shape.grad_dtype, schedule, stages,
              mesh.group("pp").rank(), factories()),
          plan(schedule),
          messages(mesh.group("pp"), plan,
                   stream_shape(shape.micro_batch, shape.seq / chosen.axes.cp), shape.model.dtype),
          executor(schedule, plan, own, messages, mesh.group("pp").rank()),
          units(own.units()) {
        add_holders(mesh, schedule, shape.config);
        // On a GPU the executor loads the kernels before its first step, by running all stages
        // once. What the experts have counted then is discarded.
        executor.kernels_loaded = [this] {
            if (experts) experts->balance().begin_step();
        };
        sum_over_replicas(own.parameters(), mesh);
        if (chosen.zero.stage == 0)
            updates = std::make_unique<Buckets>(own.parameters(), mesh, options, bucket_elements());
        else
            updates = make_zero(own.parameters(), units, mesh, options, chosen.zero);
    }
    Composition(const Composition&) = delete;  // its members refer to each other

    // Which samples this rank trains on, and which part of each sequence.
    DataSlice data_slice() const {
        // exercise 09.2 begin: which ranks have samples of their own? and which a part of each
        const Communicator& replicas = mesh.group({"replica", "dp", "ep"});
        DataSlice slice{
            .micro_batch = shape.micro_batch, .count = replicas.size(), .replica = replicas.rank()};
        if (context.options().cp > 1)
            slice.part = [this](const HostBatch& whole) { return context.part(whole); };
        return slice;
        // exercise 09.2 end
    }
    // The residual stream between two layers or stages, for B sequences of which this rank has T
    // tokens each: (B, T, h), or with sequence parallelism (B T / tp, h).
    Shape stream_shape(int64_t B, int64_t T) const {
        const int64_t h = shape.config.hidden;
        if (techniques.tensor.sequence_parallel) return {B * T / techniques.tensor.tp, h};
        return {B, T, h};
    }
    // The number of elements of a full bucket.
    int64_t bucket_elements() const {
        return int64_t(techniques.bucket_mb * 1048576) / dtype_bytes(shape.grad_dtype);
    }
    const Communicator& pp() const { return mesh.group("pp"); }
    // The ranks whose losses add up. The ranks along tp have the same loss, so it counts once.
    const Communicator& loss_group() const {
        return mesh.group({"pp", "replica", "dp", "ep", "cp"});
    }

    const StepShape shape;
    const Techniques techniques;
    Mesh mesh;
    const Schedule schedule;
    const std::vector<Stage> stages;
    TensorParallel tensor;
    const StepShape local_heads_shape;  // the shape as attention sees it: with this rank's heads
    ContextParallel context;
    const SharedTokens tokens;
    std::unique_ptr<ExpertParallel> experts;  // none in a dense model
    Fp8Linears fp8;                           // used if the recipe multiplies in fp8
    RankStages own;                           // this rank's stages of the model
    const MessagePlan plan;
    Messages messages;
    Executor executor;
    const std::vector<const Unit*> units;
    std::unique_ptr<Updater> updates;

private:
    ModuleFactories factories() {
        ModuleFactories factories = techniques.tensor.tp > 1
                                        ? tensor.factories(shape.model)
                                        : default_factories(shape.config, shape.model);
        fp8.add_to(factories, shape.config.layers);
        context.add_to(factories);
        if (shape.config.experts.count > 0) {
            experts = std::make_unique<ExpertParallel>(shape.config, techniques.experts, mesh,
                                                       schedule.micro_batches, tokens);
            experts->set_in(factories, shape.model);
        }
        return factories;
    }
    // The tokens of a micro-batch that this rank routes to experts. Context parallelism leaves it a
    // part of each sequence; sequence parallelism deals out that part's tokens to the ranks of tp.
    SharedTokens shared_tokens() const {
        const bool rows = techniques.tensor.sequence_parallel;
        const Communicator& ranks = rows ? mesh.group({"cp", "tp"}) : mesh.group("cp");
        if (ranks.size() == 1) return {.all = &loss_group()};
        SharedTokens shared{.ranks = &ranks};
        shared.all = rows ? &mesh.group({"pp", "replica", "dp", "ep", "cp", "tp"}) : &loss_group();
        shared.tokens = [this, rows](int64_t count) {
            std::vector<TokenRange> token_ranges{{0, 0, count}}, all;
            if (rows) token_ranges = tensor.tokens(count);
            // Context parallelism leaves this rank T tokens of each sequence. Of these, `at` is the
            // token of row i, and position() says where it is in the whole sequence.
            const int64_t T = context.local_length();
            for (const TokenRange& range : token_ranges)
                for (int64_t i = 0; i < range.count; ++i) {
                    const int64_t at = range.first_token + i;
                    add_token(all, range.first_row + i,
                              at / T * shape.seq + context.position(at % T));
                }
            return all;
        };
        if (rows) shared.replica_groups = {"tp"};
        return shared;
    }
};

}  // namespace ultrascale::five_d
