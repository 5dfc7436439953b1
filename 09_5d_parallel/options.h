// The program's options, and which of them exclude each other: one line says why.
#pragma once

#include "composition.h"
#include "planner/options.h"
#include "report/cli.h"

namespace ultrascale {

// UserError if these techniques exclude each other, or the model or its batch cannot be cut so.
inline void check_combination(const Options& options, const Techniques& t, const StepShape& shape) {
    const Schedule schedule = t.make_schedule(int(options.grad_accum));
    check_can_run(shape, schedule);
    cut(shape, schedule.stages, t.split);
    check_splits(shape.config, t.tensor, shape.micro_batch, shape.seq / t.axes.cp);
    check_shares(with_heads_of(shape, t.axes.tp, 0).config, t.context, shape.seq);
    const int64_t E = shape.config.experts.count;
    if (E == 0 && t.axes.ep > 1)
        user_error("--ep {}: this model has no experts to share; --model nano-moe has", t.axes.ep);
    if (E > 0 && E % t.axes.ep != 0)
        user_error("--ep {}: it must divide the {} experts", t.axes.ep, E);
    if (E > 0 && t.axes.tp > 1 && !t.tensor.sequence_parallel)
        user_error(
            "--tp {}: its ranks hold whole experts and would all compute the same; with "
            "--sequence-parallel each routes tokens of its own",
            t.axes.tp);
    if (E > 0 && schedule.copies() > 1)
        user_error("--schedule {}: it holds the model twice, but a router's loads are counted once",
                   schedule.name);
    if (t.precision.recipe.fp8()) {
        const LlamaConfig& c = shape.config;
        const int64_t tokens = shape.micro_batch * shape.seq / t.axes.cp;
        for (const int64_t size : {tokens, c.hidden, c.q_size() / t.axes.tp, c.ffn / t.axes.tp})
            if (size % 16 != 0)
                user_error(
                    "--recipe {}: a rank's products in fp8 have {} rows or columns, which "
                    "must be a multiple of 16",
                    t.precision.recipe.name, size);
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
    if (t.axes.cp > 1 && options.document_token >= 0)
        user_error("--document-token: 04_context_parallel shows documents with --cp");
}

struct Chapter {
    Techniques techniques;
    PlannerOptions planner;
    bool compare = false;
    std::string order, layout;
    double aux_coefficient = -1;
    std::string recipe;

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
        options.add("--prefetch", t.zero.prefetch, "With --zero 3: units gathered ahead")
            .between(0, 1000)
            .only_if([&t] { return t.zero.stage == 3; }, "only --zero 3 gathers parameters")
            .show_default();
        options
            .choice("--keep-gathered", t.zero.keep_gathered, {{"on", true}, {"off", false}},
                    "With --zero 3: gather parameters once a step and keep them")
            .only_if([&t] { return t.zero.stage == 3; }, "only --zero 3 gathers parameters");
        options
            .choice("--offload", t.zero.offload, {{"none", false}, {"optimizer", true}},
                    "What is kept, and updated, on the host")
            .only_if([&t] { return t.zero.stage > 0; }, "--zero 0 has no shards to offload");
        options
            .flag("--sequence-parallel", t.tensor.sequence_parallel,
                  "Norms and residuals on 1/tp of the tokens")
            .only_if([&t] { return t.axes.tp > 1; }, "--tp 1: no other rank has some of them");
        options
            .choice("--tp-overlap", t.tensor.overlap,
                    {{"none", Overlap::none}, {"async", Overlap::async}, {"chunk", Overlap::chunk}},
                    "What hides communication inside a layer: see 03_tensor_parallel")
            .only_if([&t] { return t.axes.tp > 1; }, "--tp 1 communicates nothing");
        const auto with_cp = [&t] { return t.axes.cp > 1; };
        const char* whole = "--cp 1: every rank has whole sequences";
        options
            .choice("--variant", t.context.variant,
                    {{"ring", Variant::ring},
                     {"all-gather", Variant::all_gather},
                     {"ulysses", Variant::ulysses},
                     {"usp", Variant::usp}},
                    "How queries meet the keys of other ranks: see 04_context_parallel")
            .only_if(with_cp, whole);
        options.add("--layout", layout, "Which tokens a rank takes: contiguous, zigzag or striped")
            .one_of({"contiguous", "zigzag", "striped"})
            .only_if(with_cp, whole);
        options.add("--ulysses", t.context.ulysses, "With --variant usp: ranks that exchange heads")
            .between(1, 1 << 20)
            .only_if([&t] { return t.context.variant == Variant::usp; },
                     "only --variant usp has such groups");
        const auto with_pp = [&t] { return t.axes.pp > 1; };
        const char* one = "--pp 1: one rank has all layers";
        options.add("--schedule", t.schedule, "Of a pipeline: see 05_pipeline")
            .only_if(with_pp, one)
            .show_default();
        options.add("--chunks", t.sizes.chunks, "With some schedules: stages that each rank has")
            .between(1, 1 << 20)
            .only_if(with_pp, one);
        options.add("--group", t.sizes.group, "With --schedule interleaved: see 05_pipeline")
            .between(1, 1 << 20)
            .only_if(with_pp, one);
        options.add("--split", t.split, "Layers of each stage: auto, or numbers like 6,5,5")
            .only_if(with_pp, one)
            .show_default();
        options
            .add("--recipe", recipe,
                 "Instead of --dtype: fp32, bf16, bf16-fp32 (gradients in fp32), or with the "
                 "linears' products in fp8 tensor or row; see 08_mixed_precision")
            .excludes({"--dtype", "--fp32-grads"});
        options.choice("--dispatch", t.experts.dispatch,
                       {{"expert", Dispatch::expert}, {"rank", Dispatch::rank}},
                       "What travels to experts: see 06_expert_parallel");
        options.choice("--aux", t.experts.aux,
                       {{"hf", Aux::hf},
                        {"switch", Aux::switch_transformer},
                        {"megatron", Aux::megatron},
                        {"sequence", Aux::sequence}},
                       "The loss that balances experts: see 06_expert_parallel");
        options
            .add("--aux-coef", aux_coefficient,
                 "Its coefficient. Default: 0; with --model nano-moe 0.01")
            .between(0, 1e3);
        options
            .add("--z-coef", t.experts.z_coefficient,
                 "Coefficient of the loss that keeps the routers' logits small. Default: 0")
            .between(0, 1e3);
        options
            .flag("--compare", compare,
                  "Run each technique alone on the same ranks and batch, and print two tables")
            .excludes(training_outputs)
            .excludes({"--dp", "--tp", "--cp", "--ep", "--pp", "--zero", "--order", "--estimate"});
        planner.add_options(options, shared);
    }

    // The ranks that the layout is for: those that run, or those that are only imagined.
    int ranks() const {
        if (!planner.rehearse.empty()) return rehearsed_rank(planner.rehearse).ranks;
        return planner.gpus > 0 ? int(planner.gpus) : Communicator::world().size();
    }
    // Completes the options. UserError if they cannot be combined.
    void check(const Options& options, const StepShape& shape) {
        Techniques& t = techniques;
        complete_experts(options, shape.config);
        if (!order.empty()) t.axes.set_order(order);
        t.complete(ranks(), layout);
        check_combination(options, t, shape);
    }
    // The formats that --recipe asks for.
    Options with_recipe(Options options) {
        Recipe& chosen = techniques.precision.recipe;
        if (recipe.empty()) return chosen.activations = options.dtype, options;
        const Recipe* found = find_recipe(recipe);
        if (!found) user_error("--recipe {}: there is no such recipe; see --help", recipe);
        chosen = *found;
        const bool in_shards = chosen.weights == chosen.activations && !chosen.loss_scale &&
                               chosen.m == DType::fp32 && chosen.v == DType::fp32;
        if (!in_shards)
            user_error(
                "--recipe {}: 08_mixed_precision keeps its weights and states in formats that "
                "shards do not have here; tensor and row multiply in fp8",
                recipe);
        options.dtype = chosen.activations;
        options.fp32_grads = chosen.sum() == DType::fp32;
        return options;
    }
    // Those that the model decides.
    void complete_experts(const Options& options, const LlamaConfig& config) {
        ExpertOptions& e = techniques.experts;
        const bool preset = options.load.empty() && options.model == "nano-moe";
        e.aux_coefficient = aux_coefficient >= 0 ? aux_coefficient
                            : preset             ? config.experts.aux_coefficient
                                                 : 0;
        e.gamma = config.experts.selection_bias ? 0.001 : 0;
    }
};

}  // namespace ultrascale
