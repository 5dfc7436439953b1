// The chapter's options, and which of them exclude each other.
#pragma once

#include <sstream>

#include "../precision_options.h"
#include "comm/comm.h"
#include "lab/options/cli.h"
#include "traps.h"

namespace ultrascale::mixed_precision {

struct Chapter {
    PrecisionOptions precision;
    Trap trap = Trap::none;
    std::string demo;
    bool compare = false, cuda_graph = false;
    double show = 0.1;

    void add_options(OptionList& options, const Options&) {
        for (const char* name : {"--dtype", "--fp32-grads"})
            options.has_no_effect(name, "the recipe says in which formats; see --recipe");
        std::vector<std::string> names;
        for (const Recipe& recipe : all_recipes()) names.push_back(recipe.name);
        options.add("--recipe", recipe_, "Formats of weights, gradients, moments and products")
            .one_of(names)
            .show_default();
        add_tricks(options);
        add_fp8(options);
        std::vector<std::string> traps;
        for (const auto& [name, trap] : trap_names()) traps.push_back(name);
        options.add("--trap", trap_, "Make a mistake, and see what finds it").one_of(traps);
        add_cuda_graph(options, cuda_graph);
        options.flag("--compare", compare, "Train with each recipe in turn, and print one table")
            .excludes(training_outputs)
            .excludes({"--recipe", "--without", "--loss-scale", "--trap", "--estimate", "--load",
                       "--cuda-graph"});
        options
            .add("--demo", demo,
                 "formats: what each can hold; rounding: to nearest and stochastically; scales: "
                 "what one outlier spoils; accumulator: sums in 14 bits; swiglu: its outliers; "
                 "all-reduce: gradients summed in 8 bits; blocks: mxfp8's and nvfp4's errors")
            .one_of(
                {"formats", "rounding", "scales", "accumulator", "swiglu", "all-reduce", "blocks"})
            .excludes(training_outputs)
            .excludes({"--compare", "--estimate", "--json", "--html", "--cuda-graph"})
            .reads({"--show", "--svg"}, "its numbers are chosen to show one thing");
        options.add("--show", show, "With --demo formats: the number to take apart")
            .only_if([this] { return demo == "formats"; }, "only --demo formats shows a number")
            .show_default();
        options.training_options(
            {"--recipe", "--without", "--stochastic-rounding", "--loss-scale", "--loss-scale-start",
             "--loss-scale-window", "--sum-scaling", "--gradient-format", "--amax-history",
             "--scale-margin", "--power-of-two-scales", "--fast-accumulation", "--head",
             "--keep-fp8", "--smooth-swiglu"},
            Another::told);
    }

    // Checks what the rules above cannot check, and completes the recipe.
    void check(const Options& options) {
        Recipe& recipe = precision.recipe = *find_recipe(recipe_);
        std::istringstream list(without_);
        for (std::string trick; std::getline(list, trick, ',');)
            if (!leave_out(recipe, trick))
                user_error("--without {}: {}", trick,
                           is_trick(trick)
                               ? fmt::format("recipe {} does without it, or cannot", recipe.name)
                               : "master, scaling or accumulation; up with mxfp8; hadamard, "
                                 "stochastic, square or last-layers with nvfp4; or several with "
                                 "commas");
        recipe.stochastic = stochastic_;
        if (stochastic_ && (recipe.master || recipe.weights == DType::fp32))
            user_error(
                "--stochastic-rounding: recipe {} updates weights in fp32, which round little; "
                "leave them out with --without master",
                recipe.name);
        check_loss_scale(recipe);
        check_fp8(options, recipe);
        if (!trap_.empty()) trap = trap_names().at(trap_);
        check_trap(recipe);
        precision.seed = options.seed;
    }

private:
    static const std::map<std::string, Trap>& trap_names() {
        static const std::map<std::string, Trap> names{
            {"unscale-twice", Trap::unscale_twice}, {"one-steps", Trap::one_steps},
            {"clip-scaled", Trap::clip_scaled},     {"neighbours-scale", Trap::neighbours_scale},
            {"hadamard-once", Trap::hadamard_once}, {"stale-weights", Trap::stale_weights}};
        return names;
    }
    static bool is_trick(const std::string& name) {
        for (Recipe recipe : all_recipes())
            if (leave_out(recipe, name)) return true;
        return false;
    }
    void add_tricks(OptionList& options) {
        const auto scales_loss = [this] {
            const Recipe* r = find_recipe(recipe_);
            return compare || (r && r->loss_scale);
        };
        const char* const no_scale = "the recipe does not scale the loss";
        options.add(
            "--without", without_,
            "Leave out tricks of a recipe, separated by commas: master (weights in 16 bits "
            "are updated themselves), scaling (of the loss), accumulation (of gradients in "
            "fp32); up (mxfp8's scales); hadamard, stochastic, square, last-layers (nvfp4)");
        options.flag("--stochastic-rounding", stochastic_,
                     "Round updated weights up or down at random, exactly on average");
        options
            .add("--loss-scale", loss_scale_,
                 "dynamic, or a power of two that stays; below 1 it imitates a larger batch")
            .show_default();
        options
            .add("--loss-scale-start", precision.loss_scale.start,
                 "Where a dynamic loss scale starts, a power of two")
            .between(1, LossScaleOptions::ceiling)
            .only_if(scales_loss, no_scale)
            .show_default();
        options
            .add("--loss-scale-window", precision.loss_scale.growth_interval,
                 "Steps without overflow after which a dynamic loss scale doubles")
            .at_least(1)
            .only_if(scales_loss, no_scale)
            .show_default();
        options
            .choice("--sum-scaling", precision.sum_scaling,
                    {{"pre", SumScaling::pre},
                     {"post", SumScaling::post},
                     {"automatic", SumScaling::automatic}},
                    "Gradients in fp8: when they are divided so that ranks' sums fit")
            .only_if(
                [this] {
                    const Recipe* r = find_recipe(recipe_);
                    return compare || (r && is_fp8(r->read()));
                },
                "gradients are not summed in fp8");
    }
    void add_fp8(OptionList& options) {
        const auto delays = [this] {
            const Recipe* r = find_recipe(recipe_);
            return compare || (r && r->products == Products::delayed);
        };
        const char* const no_delay = "only recipe te has delayed scales";
        options.choice("--gradient-format", gradient_format_,
                       {{"e4m3", DType::e4m3}, {"e5m2", DType::e5m2}},
                       "Of gradients in products. Default: e5m2; with tiles and mxfp8 e4m3");
        options
            .add("--amax-history", precision.history,
                 "Steps from whose largest magnitudes a delayed scale is taken")
            .between(1, 1 << 20)
            .only_if(delays, no_delay)
            .show_default();
        options
            .add("--scale-margin", precision.margin,
                 "Delayed scales are so many powers of two larger than needed")
            .between(0, 16)
            .only_if(delays, no_delay)
            .show_default();
        options.flag("--power-of-two-scales", precision.powers_of_two, "Round scales up to these");
        options.choice(
            "--fast-accumulation", precision.fast,
            {{"none", FastSums::none}, {"forward", FastSums::forward}, {"all", FastSums::all}},
            "Products whose sums stay in the tensor cores, which keep 14 bits (GPU). "
            "Default: forward; with tiles none");
        options
            .choice("--head", precision.head_fp8, {{"bf16", false}, {"fp8", true}},
                    "What the output head's products multiply")
            .only_if(
                [this] {
                    const Recipe* r = find_recipe(recipe_);
                    return compare || (r && r->fp8());
                },
                "the recipe has no products in fp8");
        options.flag("--unfused", precision.unfused,
                     "Round linears' inputs in passes of their own, not where norms and SwiGLU "
                     "make them");
        options.flag("--keep-fp8", precision.keep_fp8,
                     "Keep linears' inputs, gate and up in 8 bits until backward; with tiles also "
                     "attention's output, in 12");
        options.flag("--smooth-swiglu", precision.smooth,
                     "Scale each feature of SwiGLU's output by itself before it is rounded");
    }

    void check_loss_scale(Recipe& recipe) {
        LossScaleOptions& scale = precision.loss_scale;
        scale.scaled = recipe.loss_scale;
        const auto power_of_two = [](double x, double least) {
            int exponent = 0;
            return x >= least && x <= LossScaleOptions::ceiling && std::frexp(x, &exponent) == 0.5;
        };
        if (!power_of_two(scale.start, 1))
            user_error("--loss-scale-start {:g}: a power of two, 1 to 2^24, changes no mantissa",
                       scale.start);
        if (loss_scale_ == "dynamic") return;
        char* end = nullptr;
        scale.fixed = std::strtod(loss_scale_.c_str(), &end);
        if (*end != '\0' || !power_of_two(scale.fixed, LossScaleOptions::smallest))
            user_error(
                "--loss-scale {}: dynamic, or a power of two from 2^-24 to 2^24, which changes no "
                "mantissa",
                loss_scale_);
        if (!scale.scaled)
            user_error("--loss-scale: recipe {} does not scale the loss{}", recipe.name,
                       find_recipe(recipe.name)->loss_scale ? " --without scaling" : "");
    }
    void check_fp8(const Options& options, const Recipe& recipe) {
        precision.gradient_format = gradient_format_.value_or(gradient_format_of(recipe));
        if (recipe.fp8()) only_llama(options.config(), fmt::format("--recipe {}", recipe.name));
        const bool more = precision.fast != FastSums::by_recipe || precision.keep_fp8 ||
                          precision.smooth || precision.powers_of_two || precision.unfused;
        const bool any = gradient_format_ || more;
        if (!recipe.fp8() && any)
            user_error(
                "--gradient-format, --fast-accumulation, --keep-fp8, --smooth-swiglu, "
                "--power-of-two-scales, --unfused: recipe {} has no products in fp8",
                recipe.name);
        if (precision.smooth && (recipe.products == Products::tile || is_fp8(recipe.weights)))
            user_error("--smooth-swiglu: recipe {} {}", recipe.name,
                       is_fp8(recipe.weights)
                           ? "has weights that are in fp8 already; take te, tensor or row"
                           : "has scales of its own for each 128 features");
        if (precision.head_fp8 && options.loss_chunk % 16 != 0)
            user_error("--head fp8 --loss-chunk {}: tokens in fp8 come in multiples of 16",
                       options.loss_chunk);
        if (const int64_t V = options.config().vocab; precision.head_fp8 && V % 16 != 0)
            user_error("--head fp8: a vocabulary of {} is no multiple of 16, as fp8 needs it", V);
        const bool of_mx = gradient_format_ && recipe.products == Products::mx;
        if (recipe.only_multiplies() && ((any && !of_mx) || more || precision.head_fp8))
            user_error(
                "--gradient-format, --fast-accumulation, --keep-fp8, --smooth-swiglu, "
                "--power-of-two-scales, --unfused, --head: recipe {} is the products alone; {}",
                recipe.name,
                recipe.plain ? "take recipe tensor, which computes the same bits"
                             : "of these only mxfp8 takes one, --gradient-format");
        if (!recipe.fp8()) return;
        const char* const missing =
            recipe.blocks() ? "" : ops::fp8_missing(group_of_tokens(recipe.products));
        if (*missing)
            user_error("--recipe {}: {}; it can run fp32, fp16, bf16 and bf16-fp32", recipe.name,
                       missing);
        const int64_t tokens = options.micro_batch * (options.seq > 0 ? options.seq : 128);
        if (tokens % 16 != 0)
            user_error("--micro-batch {} --seq {}: tokens in fp8 come in multiples of 16",
                       options.micro_batch, options.seq);
    }
    void check_trap(const Recipe& recipe) const {
        const bool needs_scale =
            trap == Trap::unscale_twice || trap == Trap::one_steps || trap == Trap::clip_scaled;
        if (needs_scale && !recipe.loss_scale)
            user_error("--trap {}: recipe {} does not scale the loss", trap_, recipe.name);
        if (trap == Trap::one_steps && Communicator::world().size() == 1)
            user_error("--trap one-steps: there is one rank; start several");
        const bool nvfp4 = recipe.products == Products::nvfp4;
        if (trap == Trap::neighbours_scale && (!recipe.fp8() || recipe.plain || nvfp4))
            user_error("--trap neighbours-scale: recipe {} {}", recipe.name,
                       recipe.fp8() ? "does not make this mistake; take tensor or mxfp8"
                                    : "has no scales");
        if (trap == Trap::hadamard_once &&
            !(nvfp4 && recipe.nvfp4.hadamard && recipe.nvfp4.stochastic))
            user_error("--trap hadamard-once: it takes nvfp4, with hadamard and stochastic");
        if (trap == Trap::stale_weights && !is_fp8(recipe.weights))
            user_error("--trap stale-weights: recipe {} has no weights in fp8", recipe.name);
    }

    std::string recipe_ = "bf16", without_, loss_scale_ = "dynamic", trap_;
    std::optional<DType> gradient_format_;
    bool stochastic_ = false;
};

}  // namespace ultrascale::mixed_precision
