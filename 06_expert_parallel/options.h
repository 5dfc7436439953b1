// The chapter's options, and which of them exclude each other.
#pragma once

#include "comm/comm.h"
#include "expert_options.h"
#include "report/cli.h"

namespace ultrascale {

struct Chapter {
    ExpertOptions experts;
    bool compare = false;
    std::string demo;

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
        add_model(options);
        add_balance(options);
        options
            .choice("--dispatch", experts.dispatch,
                    {{"expert", Dispatch::expert}, {"rank", Dispatch::rank}},
                    "expert: a copy of a token's row travels to each of its experts; rank: one to "
                    "each rank that has some of them")
            .only_if([this] { return experts.capacity_factor == 0; },
                     "with --capacity-factor every expert has places of its own");
        options
            .add("--max-nodes", experts.max_nodes,
                 "A token chooses experts on at most so many nodes (--node-size), and its row "
                 "crosses the network once a node")
            .at_least(1)
            .only_if([&] { return shared.node_size > 0; },
                     "there are no nodes; simulate some with --node-size and --inter-gbps");
        options.choice("--overlap", experts.overlap,
                       {{"none", ExpertOverlap::none},
                        {"shared", ExpertOverlap::shared},
                        {"chunks", ExpertOverlap::chunks}},
                       "shared: the shared experts compute while rows travel. chunks: also the "
                       "experts, on another chunk of a micro-batch's tokens");
        options
            .add("--chunks", experts.chunks, "Chunks of a micro-batch's tokens; must divide them")
            .between(2, 64)
            .only_if([this] { return experts.overlap == ExpertOverlap::chunks; },
                     "only --overlap chunks cuts tokens into chunks")
            .show_default();
        std::string traps;
        for (const auto& [name, trap] : trap_names()) traps += (traps.empty() ? "" : ", ") + name;
        options.add("--trap", trap_, "Make a mistake, and see what finds it: " + traps);
        options
            .flag("--compare", compare,
                  "Train a few steps with 1, 2, 4, ... ranks sharing the experts, and print one "
                  "table")
            .excludes(training_outputs)
            .excludes({"--ep", "--dispatch", "--max-nodes", "--overlap", "--chunks", "--trap",
                       "--estimate", "--svg"});
        options
            .add("--demo", demo,
                 "route: eight tokens on their way to four experts on two ranks and back, step by "
                 "step")
            .one_of({"route"})
            .excludes(training_outputs)
            .excludes({"--compare", "--estimate", "--svg"});
    }

    // The model's configuration with what the options change.
    LlamaConfig config(const Options& options) const {
        LlamaConfig config = options.config();
        ExpertsConfig& e = config.experts;
        if (e.count == 0)
            user_error(
                "{}: a dense model; this program needs one with experts, e.g. --model "
                "nano-moe",
                options.load.empty() ? "--model " + options.model : "--load " + options.load);
        const auto same_in_checkpoint = [&](const char* option, int64_t given, int64_t has,
                                            const char* what) {
            if (given >= 0 && given != has && !options.load.empty())
                user_error("{} {}: the checkpoint in {} has {} {}", option, given, options.load,
                           has, what);
        };
        same_in_checkpoint("--experts", count_, e.count, "experts");
        same_in_checkpoint("--shared", shared_, e.shared, "shared experts");
        same_in_checkpoint("--first-dense", first_dense_, e.first_dense, "dense layers first");
        if (count_ >= 0) e.count = count_;
        if (shared_ >= 0) e.shared = shared_;
        if (first_dense_ >= 0) e.first_dense = first_dense_;
        if (e.first_dense >= config.layers)
            user_error("--first-dense {}: with {} layers none would have experts", e.first_dense,
                       config.layers);
        if (!router_.empty())
            e.router.score =
                router_ == "softmax" ? ops::RouterScore::softmax : ops::RouterScore::sigmoid;
        if (top_k_ > e.count) user_error("--top-k {}: there are {} experts", top_k_, e.count);
        if (top_k_ > 0) e.router.top_k = top_k_;
        if (!renormalise_.empty()) e.router.renormalise = renormalise_ == "on";
        if (scaling_ > 0) e.router.scaling = scaling_;
        if (groups_ > 0) {
            if (e.count % groups_ != 0)
                user_error("--groups {}: {} experts do not divide into so many", groups_, e.count);
            e.router.groups = groups_, e.router.top_groups = std::max<int64_t>(top_groups_, 1);
        }
        if (balance_ == "bias") e.selection_bias = true;
        if (experts.max_nodes > 0) limit_nodes(config, options);
        validate(config);
        e.aux_coefficient = aux_coefficient(options, e);
        return config;
    }

    // Checks what depends on the model and the number of ranks, and completes the options.
    void check(const Options& options, const LlamaConfig& config) {
        const int ranks = Communicator::world().size();
        const int64_t E = config.experts.count;
        if (experts.ep == 0) experts.ep = ranks;
        if (ranks % experts.ep != 0)
            user_error(
                "--ep {}: {} ranks cannot be split into groups of {}; ep must divide their "
                "number",
                experts.ep, ranks, experts.ep);
        if (E % experts.ep != 0 && !compare)
            user_error("--ep {}: it must divide the {} experts", experts.ep, E);
        experts.aux_coefficient = config.experts.aux_coefficient;
        experts.node_size = options.node_size;
        if (experts.max_nodes > 0) experts.dispatch = Dispatch::rank;
        if (experts.max_nodes > 0 && experts.capacity_factor > 0)
            user_error(
                "--max-nodes {}: rows of a fixed capacity take no detours; leave out "
                "--capacity-factor",
                experts.max_nodes);
        experts.gamma = config.experts.selection_bias ? gamma_ : 0;
        if (experts.counts_first() && experts.aux == Aux::sequence)
            user_error("--aux-over global: --aux sequence counts each sequence by itself");
        if (experts.overlap == ExpertOverlap::shared && config.experts.shared == 0)
            user_error("--overlap shared: this model has no shared experts; see --shared");
        if (experts.overlap == ExpertOverlap::chunks) check_chunks(options, config);
        if (!trap_.empty() && !trap_names().contains(trap_))
            user_error("--trap {}: no such mistake; see --help", trap_);
        if (!trap_.empty()) experts.trap = trap_names().at(trap_);
        if (experts.trap == ExpertTrap::weights_from_biased && !config.experts.selection_bias)
            user_error("--trap weights-from-biased: only with --balance bias there is a bias");
        if (experts.trap == ExpertTrap::groups_masked_with_0 &&
            config.experts.router.top_groups == config.experts.router.groups)
            user_error("--trap groups-masked-with-0: no group is masked; see --groups");
        const bool of_loss = experts.trap == ExpertTrap::softmax_twice ||
                             experts.trap == ExpertTrap::aux_times_micro_batches;
        if (of_loss && !experts.has_loss())
            user_error("--trap: there is no loss of balance to get wrong; see --aux-coef");
        if (!demo.empty()) options.refuse_figures("--demo " + demo);
    }

private:
    static const std::map<std::string, ExpertTrap>& trap_names() {
        static const std::map<std::string, ExpertTrap> names{
            {"groups-masked-with-0", ExpertTrap::groups_masked_with_0},
            {"weights-from-biased", ExpertTrap::weights_from_biased},
            {"softmax-twice", ExpertTrap::softmax_twice},
            {"experts-summed-over-ep", ExpertTrap::experts_summed_over_ep},
            {"experts-divided-by-ep", ExpertTrap::experts_divided_by_ep},
            {"norm-without-experts", ExpertTrap::norm_without_experts},
            {"aux-times-micro-batches", ExpertTrap::aux_times_micro_batches}};
        return names;
    }
    void add_model(OptionList& options) {
        options.add("--experts", count_, "Experts of a layer. Default: the model's")
            .between(1, 1024);
        options.add("--top-k", top_k_, "Experts of each token. Default: the model's")
            .between(1, 1024);
        options
            .add("--router", router_,
                 "softmax or sigmoid: how logits become scores. Default: the model's")
            .one_of({"softmax", "sigmoid"});
        options
            .add("--renormalise", renormalise_,
                 "on or off: divide a token's weights by their sum. Default: the model's")
            .one_of({"on", "off"});
        options.add("--scaling", scaling_, "Multiply weights by this. Default: the model's")
            .between(1e-3, 1e3);
        options.add("--shared", shared_, "Experts that every token goes to. Default: the model's")
            .between(0, 64);
        options
            .add("--first-dense", first_dense_,
                 "So many first layers without experts. Default: the model's")
            .between(0, 100000);
        options.add("--groups", groups_, "Groups of neighbouring experts. Default: the model's")
            .between(1, 1024);
        options.add("--top-groups", top_groups_, "Groups from which a token may choose. Default: 1")
            .between(1, 1024)
            .only_if([this] { return groups_ > 0; }, "the experts form no groups; see --groups");
    }
    void add_balance(OptionList& options) {
        options
            .add("--aux-coef", aux_coefficient_,
                 "Coefficient of the loss that balances the experts. Default: 0; with --model "
                 "nano-moe 0.01")
            .between(0, 1e3);
        options.choice("--aux", experts.aux,
                       {{"hf", Aux::hf},
                        {"switch", Aux::switch_transformer},
                        {"megatron", Aux::megatron},
                        {"sequence", Aux::sequence}},
                       "Which one: Hugging Face's, Switch Transformer's, Megatron's, or DeepSeek's "
                       "over each sequence");
        options.choice("--aux-over", experts.aux_over,
                       {{"micro-batch", AuxOver::micro_batch}, {"global", AuxOver::global}},
                       "The tokens over which it counts: a micro-batch's, or in a forward that "
                       "comes first those of the whole step");
        options
            .add("--z-coef", experts.z_coefficient,
                 "Coefficient of the loss that keeps the routers' logits small. Default: 0")
            .between(0, 1e3);
        options
            .add("--balance", balance_,
                 "loss, or bias: move a bias of each expert, without a loss. Default: loss")
            .one_of({"loss", "bias"});
        options.add("--gamma", gamma_, "By how much --balance bias moves a bias in a step")
            .between(0, 1)
            .only_if([this] { return balance_ == "bias"; }, "only --balance bias has one")
            .show_default();
        options.flag("--force-balance", experts.force_balance,
                     "Give all experts equally many rows, whatever the routers say");
        options
            .add("--skew", experts.skew,
                 "Send this share of all tokens to expert 0 first, and the rest evenly")
            .between(0, 1);
        options
            .add("--capacity-factor", experts.capacity_factor,
                 "An expert takes this times a rank's mean number of rows and drops the rest. "
                 "Default: none is dropped")
            .between(0.01, 1e3);
        options
            .choice("--drop", experts.drop,
                    {{"position", Drop::by_position}, {"score", Drop::by_score}},
                    "What is dropped: the last tokens, or those with the smallest weights")
            .only_if([this] { return experts.capacity_factor > 0; },
                     "without --capacity-factor nothing is dropped");
    }
    void check_chunks(const Options& options, const LlamaConfig& config) const {
        if (experts.ep == 1)
            user_error("--overlap chunks: with --ep 1 no row travels, so there is nothing to hide");
        if (experts.dispatch == Dispatch::rank)
            user_error(
                "--overlap chunks: only with --dispatch expert; what a rank gets of other ranks' "
                "rows is known too late");
        const int64_t tokens =
            options.micro_batch * (options.seq > 0 ? options.seq : config.default_seq);
        if (tokens % experts.chunks != 0)
            user_error("--chunks {}: it must divide the {} tokens of a micro-batch", experts.chunks,
                       tokens);
    }
    // Nodes are groups of the router: a token chooses within its best ones.
    void limit_nodes(LlamaConfig& config, const Options& options) const {
        const int ranks = Communicator::world().size(), ep = experts.ep > 0 ? experts.ep : ranks;
        ops::RouterSettings& r = config.experts.router;
        if (ep % options.node_size != 0)
            user_error("--max-nodes {}: --ep {} is not a whole number of nodes of {}",
                       experts.max_nodes, ep, format_count(options.node_size, "rank"));
        if (groups_ > 0 || r.groups > 1)
            user_error("--max-nodes {}: nodes take the place of the router's groups",
                       experts.max_nodes);
        const int nodes = ep / options.node_size;
        if (experts.max_nodes > nodes)
            user_error("--max-nodes {}: there are {}", experts.max_nodes,
                       format_count(nodes, "node"));
        if (config.experts.count % nodes != 0)
            user_error("--max-nodes {}: {} experts do not divide among {} nodes", experts.max_nodes,
                       config.experts.count, nodes);
        r.groups = nodes, r.top_groups = experts.max_nodes;
    }
    double aux_coefficient(const Options& options, const ExpertsConfig& e) const {
        if (aux_coefficient_ >= 0) return aux_coefficient_;
        const bool preset = options.load.empty() && options.model == "nano-moe";
        return preset && balance_ != "bias" && !experts.forced() ? e.aux_coefficient : 0;
    }

    int64_t count_ = -1, top_k_ = 0, shared_ = -1, first_dense_ = -1, groups_ = 0, top_groups_ = 0;
    double scaling_ = 0, aux_coefficient_ = -1, gamma_ = 0.001;
    std::string router_, renormalise_, balance_ = "loss", trap_;
};

}  // namespace ultrascale
