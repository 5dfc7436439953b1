// The chapter's options, and which of them exclude each other.
#pragma once

#include "comm/comm.h"
#include "loads_file.h"
#include "shared_options.h"
#include "traps.h"

namespace ultrascale::expert_parallel {

struct Chapter {
    ExpertOptions experts;
    ExpertTrap trap = ExpertTrap::none;
    bool compare = false;
    std::string demo, save_loads;

    static Options defaults() {
        Options options;
        options.model = "nano-moe", options.with_experts = true;
        return options;
    }

    void add_options(OptionList& options, const Options& shared) {
        options
            .add("--ep", experts.ep,
                 "Ranks that share the experts of each layer; must divide the number of ranks "
                 "and of experts. Default: all")
            .between(1, 1 << 20);
        choices_.add_options(options, shared);
        options.choice("--dispatch-dtype", experts.dispatch_dtype,
                       {{"model", DispatchDtype::model},
                        {"fp8", DispatchDtype::fp8},
                        {"fp8-both", DispatchDtype::fp8_both}},
                       "fp8: rows travel to their experts in e4m3, with a scale for each 128 "
                       "numbers; fp8-both: their gradients, too");
        options.add("--loads", loads_,
                    "Place the experts of each layer on ranks by their loads in this file, which "
                    "--save-loads has written");
        options
            .add("--replicas", experts.replicas,
                 "So many copies of a layer's experts beside them, of those with the largest loads")
            .between(1, 1 << 20)
            .only_if([this] { return !loads_.empty(); },
                     "the experts' loads are unknown; see --loads");
        options
            .add("--save-loads", save_loads,
                 "Write how many rows each expert of each layer got in the run to this file")
            .excludes({"--estimate"});
        std::vector<std::string> traps;
        for (const auto& [name, value] : trap_names()) traps.push_back(name);
        options.add("--trap", trap_, "Make a mistake, and see what finds it").one_of(traps);
        options
            .flag("--compare", compare,
                  "Train a few steps with 1, 2, 4, ... ranks sharing the experts, and print one "
                  "table")
            .excludes(training_outputs)
            .excludes({"--ep", "--dispatch", "--dispatch-dtype", "--max-nodes", "--overlap",
                       "--chunks", "--loads", "--replicas", "--save-loads", "--trap", "--estimate",
                       "--svg"});
        options
            .add("--demo", demo,
                 "route: eight tokens on their way to four experts on two ranks and back, step by "
                 "step")
            .one_of({"route"})
            .excludes(training_outputs)
            .excludes({"--compare", "--estimate", "--svg"})
            .reads({"--json", "--html"}, "its tokens are few enough to print");
    }

    LlamaConfig config(const Options& options) const {
        LlamaConfig config = choices_.config(options);
        if (config.experts.count == 0)
            user_error(
                "{}: a dense model; this program needs one with experts, e.g. --model "
                "nano-moe",
                options.load.empty() ? "--model " + options.model : "--load " + options.load);
        return config;
    }

    // Checks the options that depend on the model and the number of ranks, and completes them.
    void check(const Options& options, const LlamaConfig& config) {
        const int ranks = Communicator::world().size();
        if (experts.ep == 0) experts.ep = ranks;
        if (ranks % experts.ep != 0)
            user_error(
                "--ep {}: {} cannot be split into groups of {}; ep must divide their "
                "number",
                experts.ep, format_count(ranks, "rank"), experts.ep);
        const int64_t E = config.experts.count;
        if (!loads_.empty()) check_placement(config);
        if (E % experts.ep != 0 && !compare && !experts.placed())
            user_error("--ep {}: it must divide the {}", experts.ep, format_count(E, "expert"));
        const int64_t seq = options.seq > 0 ? options.seq : config.default_seq;
        choices_.check(options, config, options.micro_batch * seq);
        check_fp8(config);
        if (!trap_.empty()) trap = trap_names().at(trap_);
        if (trap == ExpertTrap::weights_from_biased && !config.experts.selection_bias)
            user_error("--trap weights-from-biased: only with --balance bias there is a bias");
        if (trap == ExpertTrap::groups_masked_with_0 &&
            config.experts.router.top_groups == config.experts.router.groups)
            user_error("--trap groups-masked-with-0: no group is masked; see --groups");
        if (trap == ExpertTrap::scales_of_neighbour && !experts.fp8_rows())
            user_error("--trap scales-of-neighbour: rows have no scales; see --dispatch-dtype");
        if (trap == ExpertTrap::copies_apart && experts.replicas == 0)
            user_error("--trap copies-apart: no expert has copies; see --replicas");
        const bool needs_loss =
            trap == ExpertTrap::softmax_twice || trap == ExpertTrap::aux_times_micro_batches;
        if (needs_loss && !experts.has_loss())
            user_error("--trap: there is no auxiliary loss to get wrong; see --aux-coef");
        if (!demo.empty()) options.refuse_figures("--demo " + demo);
    }

private:
    void check_fp8(const LlamaConfig& config) const {
        if (!experts.fp8_rows()) return;
        const char* const name = dispatch_dtype_names[int(experts.dispatch_dtype)];
        if (config.hidden % ops::packed_block != 0)
            user_error("--dispatch-dtype {}: {} numbers share a scale, and a row has {}", name,
                       ops::packed_block, config.hidden);
        if (experts.dispatch == Dispatch::plain)
            user_error("--dispatch-dtype {}: --dispatch plain sends rows as they are", name);
        if (experts.overlap == ExpertOverlap::chunks)
            user_error(
                "--dispatch-dtype {}: with --overlap chunks rows come back to the memory that "
                "they left, so they have one size; --overlap batches",
                name);
    }
    void check_placement(const LlamaConfig& config) {
        const int64_t E = config.experts.count, ep = experts.ep, R = experts.replicas;
        if (ep == 1) user_error("--loads: with --ep 1 one rank holds all experts; --ep 2");
        if ((E + R) % ep != 0)
            user_error("--ep {}: it must divide the {} and {} of a layer; --replicas {}", ep,
                       format_count(E, "expert"), format_count(R, "replica"),
                       R + ep - (E + R) % ep);
        if (R > E * (ep - 1))
            user_error("--replicas {}: a rank holds no expert twice, so {} have room for {}", R,
                       format_count(ep, "rank"), E * (ep - 1));
        if (E + R > 1024)
            user_error("--replicas {}: a layer has room for 1024 experts and copies", R);
        if (experts.dispatch != Dispatch::expert || experts.max_nodes > 0 ||
            experts.capacity_factor > 0)
            user_error(
                "--loads: rows find copies with --dispatch expert only, without --max-nodes and "
                "--capacity-factor");
        experts.loads = read_loads(loads_, config.layers - config.experts.first_dense, E);
    }
    static const std::map<std::string, ExpertTrap>& trap_names() {
        static const std::map<std::string, ExpertTrap> names{
            {"groups-masked-with-0", ExpertTrap::groups_masked_with_0},
            {"weights-from-biased", ExpertTrap::weights_from_biased},
            {"softmax-twice", ExpertTrap::softmax_twice},
            {"experts-summed-over-ep", ExpertTrap::experts_summed_over_ep},
            {"experts-divided-by-ep", ExpertTrap::experts_divided_by_ep},
            {"norm-without-experts", ExpertTrap::norm_without_experts},
            {"aux-times-micro-batches", ExpertTrap::aux_times_micro_batches},
            {"scales-of-neighbour", ExpertTrap::scales_of_neighbour},
            {"copies-apart", ExpertTrap::copies_apart}};
        return names;
    }
    ExpertChoices choices_{experts};
    std::string trap_, loads_;
};

}  // namespace ultrascale::expert_parallel
