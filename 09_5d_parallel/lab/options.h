// The program's options. If two of them exclude each other, one line says why.
#pragma once

#include "../4_composition.h"
#include "../planner/options.h"
#include "02_zero/lab/shared_options.h"
#include "03_tensor_parallel/lab/shared_options.h"
#include "05_pipeline/lab/pipeline.h"
#include "05_pipeline/lab/schedule_options.h"
#include "06_expert_parallel/lab/shared_options.h"
#include "lab/options/cli.h"
#include "train/run.h"

namespace ultrascale::five_d {

// Throws UserError if sequences of this length cannot be cut by all techniques at once.
inline void check_length(const Techniques& t, const StepShape& shape) {
    const int64_t B = shape.micro_batch, cp = t.axes.cp, tp = t.axes.tp,
                  parts = t.tensor.sequence_parallel ? cp * tp : cp;  // a sequence's
    int64_t multiple = 1;
    std::string all;
    const auto needs = [&](int64_t tokens, const std::string& option) {
        if (multiple % tokens == 0) return;
        multiple = std::lcm(multiple, tokens);
        all += (all.empty() ? "" : " and ") + option;
    };
    // `ranks` share a micro-batch's tokens, and each must have a multiple of `tokens`.
    const auto needs_of_each = [&](int64_t ranks, int64_t tokens, const std::string& option) {
        needs(ranks * (tokens / std::gcd(tokens, B)), option);
    };
    needs(sequence_multiple(t.context),
          fmt::format("--cp {} ({})", cp, layout_names[int(t.context.layout)]));
    if (t.tensor.sequence_parallel) needs(parts, fmt::format("--tp {} --sequence-parallel", tp));
    if (t.tensor.partition_checkpoints)
        needs_of_each(cp, tp, fmt::format("--tp {} --partition-checkpoints", tp));
    if (t.precision.recipe.fp8()) needs_of_each(cp, 16, "--recipe " + t.precision.recipe.name);
    if (t.experts.chunks_here() > 1)
        needs_of_each(parts, t.experts.chunks, fmt::format("--ep-chunks {}", t.experts.chunks));
    if (shape.seq % multiple != 0)
        user_error("--seq {}: it must be a multiple of {} for {}; --seq {} would work", shape.seq,
                   multiple, all, std::max(shape.seq / multiple, int64_t(1)) * multiple);
}

// Throws UserError if a micro-batch cannot compute while another one's rows travel to experts.
inline void check_interleaved(const Techniques& t, const Schedule& schedule) {
    if (t.zero.stage == 3)
        user_error(
            "--ep-overlap batches: a layer's weights would be freed by one micro-batch while "
            "another one uses them; with --zero 0, 1 or 2 they stay");
    for (const auto& actions : schedule.actions)
        for (size_t i = 0; i + 1 < actions.size(); ++i)
            if (actions[i].with_next) {
                if (actions[i].kind == ActionKind::backward_input ||
                    actions[i + 1].kind == ActionKind::backward_input)
                    user_error("--ep-overlap batches: only a whole backward runs beside a forward");
                return;
            }
    user_error(
        "--ep-overlap batches: --schedule {} has no forward and backward that run together; "
        "1f1b-overlap, dualpipe and dualpipev have{}",
        t.schedule, t.schedule == "1f1b-overlap" ? ", with more micro-batches (--grad-accum)" : "");
}

// Throws UserError if these techniques exclude each other, or cannot cut the model or its batch.
inline void check_combination(const Options& options, const Techniques& t, const StepShape& shape) {
    if (t.schedule == "optimal")
        user_error("--schedule optimal: 05_pipeline measures the times that it needs");
    sequences_of_step(options, int64_t(t.axes.dp) * t.axes.ep);  // throws if they are too many
    const Schedule schedule = t.make_schedule(int(options.grad_accum));
    if (t.experts.interleaves()) check_interleaved(t, schedule);
    check_can_run(shape, schedule);
    check_length(t, shape);
    cut(shape, schedule.stages, t.split);
    check_splits(shape.config, t.tensor, shape.micro_batch, shape.seq / t.axes.cp);
    check_shares(with_heads_of(shape, t.axes.tp, 0).config, t.context, shape.seq);
    check_made_again(shape, t.context);
    check_sent(t.zero, shape.grad_dtype);
    check_shard_size(t.zero, t.axes.dp);
    const int64_t E = shape.config.experts.count;
    if (E == 0 && t.axes.ep > 1)
        user_error("--ep {}: this model has no experts to share; --model nano-moe has", t.axes.ep);
    if (E > 0 && E % t.axes.ep != 0)
        user_error("--ep {}: it must divide the {}", t.axes.ep, format_count(E, "expert"));
    if (E > 0 && t.axes.tp > 1 && !t.tensor.sequence_parallel)
        user_error(
            "--tp {}: its ranks hold whole experts and would all compute the same; with "
            "--sequence-parallel each routes tokens of its own",
            t.axes.tp);
    if (t.experts.counts_first() && (t.axes.tp > 1 || t.axes.cp > 1 || t.zero.stage == 3))
        user_error(
            "--aux-over global: the forward that comes first would repeat what --tp, --cp and "
            "--zero 3 send in one, which is not predicted");
    if (t.precision.recipe.fp8()) {
        const LlamaConfig& c = shape.config;
        check_sizes(t.precision.recipe, {shape.micro_batch * shape.seq / t.axes.cp, c.hidden,
                                         c.q_size() / t.axes.tp, c.ffn / t.axes.tp});
        if (E > 0)
            user_error("--recipe {}: products of experts, in groups, are not in fp8",
                       t.precision.recipe.name);
        for (const auto& actions : schedule.actions)
            if (std::ranges::find(actions, ActionKind::backward_weight, &Action::kind) !=
                actions.end())
                user_error(
                    "--recipe {}: --schedule {} takes backward apart, and what its linears keep "
                    "in 8 bits in between is not predicted; 1f1b or interleaved",
                    t.precision.recipe.name, t.schedule);
    }
    if (options.dropout > 0)
        user_error("--dropout: 00_single_gpu and 03 to 06 show it, each with one technique");
    if (options.sample > 0)
        user_error("--sample: use --save here, and 00_single_gpu --load DIR --sample N");
    if (t.axes.cp > 1 && options.attention == AttentionKind::naive)
        user_error("--attention naive: with --cp a rank merges what attention in tiles gives it");
}

// Throws UserError if the experts cannot work on the tokens that the other techniques leave to a
// rank. All ranks call it.
inline void check_experts(const Composition& all) {
    if (!all.experts) return;
    const std::string reason = why_not(all.techniques.experts, all.tokens, all.shape.micro_batch,
                                       all.shape.seq, all.schedule.ranks());
    if (!reason.empty()) user_error("{}", reason);
}

struct Chapter {
    Techniques techniques;
    PlannerOptions planner;
    bool compare = false;
    std::string order, layout;
    std::string recipe;
    ExpertChoices experts{techniques.experts};

    static Options defaults() {
        Options options;
        options.with_experts = true;
        return options;
    }

    void add_options(OptionList& options, const Options& shared) {
        Techniques& t = techniques;
        const auto axis = [&](const char* name, int& size, const std::string& what) {
            return options.add(name, size, what).between(1, 1 << 20);
        };
        axis("--dp", t.axes.dp, "Ranks with other samples. Default: all that are left");
        axis("--tp", t.axes.tp, "Ranks that share each layer").show_default();
        axis("--cp", t.axes.cp, "Ranks that share each sequence").show_default();
        axis("--ep", t.axes.ep, "Ranks that share the experts of a layer").show_default();
        axis("--pp", t.axes.pp, "Ranks of a pipeline").show_default();
        options.add("--order", order, "Axes, neighbouring ranks first. Default: tp,cp,ep,dp,pp");
        options
            .add("--zero", t.zero.stage,
                 "What is sharded over dp and cp: 0 nothing, 1 optimizer states, 2 gradients too, "
                 "3 parameters too")
            .between(0, 3)
            .show_default();
        options.add("--bucket-mb", t.bucket_mb, "With --zero 0: size of a bucket of gradients, MiB")
            .between(0.001, 1e6)
            .only_if([&t] { return t.zero.stage == 0; }, "ZeRO sums gradients unit by unit")
            .show_default();
        ultrascale::zero::add_options(options, t.zero, compare);
        options
            .choice("--offload", t.zero.offload, {{"none", false}, {"optimizer", true}},
                    "What is kept, and updated, on the host")
            .only_if([&t] { return t.zero.stage > 0; }, "--zero 0 has no shards to offload");
        options.only_if([&t] { return t.axes.tp > 1; }, "--tp 1: every rank has whole layers",
                        [&] { tensor_parallel::add_options(options, t.tensor, "--tp-"); });
        // --plan searches all sizes of the axes that are not given.
        options.only_if([this] { return techniques.axes.cp > 1 || planner.plan; },
                        "--cp 1: every rank has whole sequences",
                        [&] {
                            context_parallel::add_options(options, t.context, layout)
                                .only_if([&] { return can_run_backward(t.context, shared); },
                                         why_restarted);
                        });
        options.only_if([this] { return techniques.axes.pp > 1 || planner.plan; },
                        "--pp 1: one rank has all layers",
                        [&] { pipeline::add_options(options, t.schedule, t.sizes, t.split); });
        options.only_if([&] { return shared.config().experts.count > 0; },
                        "this model has no experts; --model nano-moe has",
                        [&] { experts.add_options(options, shared, "--ep-"); });
        options
            .add("--recipe", recipe,
                 "Instead of --dtype: fp32, bf16, bf16-fp32 (gradients in fp32), or with the "
                 "linears' products in fp8 tensor or row; see 08_mixed_precision")
            .excludes({"--dtype", "--fp32-grads"});
        options
            .flag("--compare", compare,
                  "Run each technique alone on the same ranks and batch, and print two tables")
            .ignores(both(training_outputs,
                          {"--save-every",  "--save-async", "--val-every",   "--prompt",
                           "--temperature", "--verify",     "--peak-tflops", "--lr",
                           "--lr-schedule", "--lr-steps",   "--warmup",      "--weight-decay",
                           "--clip",        "--dp",         "--tp",          "--cp",
                           "--ep",          "--pp",         "--zero",        "--order",
                           "--max-nodes",   "--estimate"}),
                     "it repeats one step, with each technique in turn, and learns nothing");
        options.option("--estimate")
            .ignores({"--gather-overlap", "--merge", "--router", "--renormalise", "--scaling",
                      "--groups", "--top-groups", "--aux-coef", "--aux", "--balance", "--gamma",
                      "--force-balance", "--skew", "--drop"},
                     "it changes no byte; experts are taken to get equally many rows");
        planner.add_options(options, shared);
        options.training_options({"--recipe"}, Another::told);
    }

    LlamaConfig config(const Options& options) {
        techniques.experts.ep = compare ? Communicator::world().size() : techniques.axes.ep;
        if (leaves_keys_out(options)) techniques.context.backward = RingBackward::restarted;
        return experts.config(options);
    }
    bool imagines_ranks() const { return planner.imagines_ranks(); }
    // The number of ranks of the layout: those that run, or those that are only imagined.
    int ranks() const {
        if (!planner.rehearse.empty()) return rehearsed_rank(planner.rehearse).ranks;
        return planner.gpus > 0 ? int(planner.gpus) : Communicator::world().size();
    }
    // Completes options whose values are words, for the planner's formulas. May throw UserError.
    void complete_words(const Options& options) {
        Techniques& t = techniques;
        if (!order.empty()) t.axes.set_order(order);
        t.context.cp = t.axes.cp > 1 ? t.axes.cp : 0;
        context_parallel::complete(t.context, layout);
        t.experts.node_size = options.node_size;
        if (t.experts.max_nodes > 0) t.experts.dispatch = Dispatch::rank;
    }
    // Completes the options. Throws UserError if they cannot be combined.
    void check(const Options& options, const StepShape& shape) {
        Techniques& t = techniques;
        const Axes& axes = t.axes;
        if (!order.empty()) t.axes.set_order(order);
        complete(t, ranks(), layout);
        context_parallel::check_masks(t.context, options);
        tensor_parallel::complete(t.tensor, options.recompute);
        check_length(t, shape);  // before the experts' own check, which recommends no length
        complete_experts(options, shape);
        if (t.experts.interleaves() && t.schedule == "1f1b") t.schedule = "1f1b-overlap";
        if (t.experts.max_nodes > 0 && axes.stride("ep") > 1)
            user_error("--max-nodes: ranks of ep must be neighbours for nodes to be parts of it");
        check_combination(options, t, shape);
    }
    // Completes the experts' options, which depend on the model.
    void complete_experts(const Options& options, const StepShape& shape) {
        const int parts = techniques.tensor.sequence_parallel ? techniques.axes.tp : 1;
        experts.check(options, shape.config,
                      shape.micro_batch * shape.seq / techniques.axes.cp / parts);
    }
    // Sets the formats that --recipe asks for.
    Options with_recipe(Options options) {
        Recipe& chosen = techniques.precision.recipe;
        if (recipe.empty()) return chosen.activations = options.dtype, options;
        chosen = recipe_of_products(recipe);
        options.dtype = chosen.activations;
        options.fp32_grads = chosen.sum() == DType::fp32;
        return options;
    }
};

}  // namespace ultrascale::five_d
