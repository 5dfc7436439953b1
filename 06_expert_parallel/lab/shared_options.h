// The options of the experts' training except --ep: their effects, and which of them exclude each
// other. Those of the model are in model_options.h.
#pragma once

#include "../expert_options.h"
#include "../shared_tokens.h"
#include "comm/comm.h"
#include "model_options.h"

namespace ultrascale::expert_parallel {

// The options that a checkpoint records besides the given ones: defaults that differ between models
// and programs.
inline std::map<std::string, std::string> recorded(const ExpertOptions& o) {
    std::map<std::string, std::string> options{
        {"--aux-coef", fmt::format("{}", o.aux_coefficient)}};
    if (o.has_loss()) options["--aux"] = aux_names[int(o.aux)];
    return options;
}

class ExpertChoices {
public:
    // Reads options into `chosen`, whose ep is already set: 0 for all ranks.
    explicit ExpertChoices(ExpertOptions& chosen) : experts_(chosen) {}
    ExpertChoices(const ExpertChoices&) = delete;

    // `prefix` precedes the names that other techniques use as well.
    void add_options(OptionList& options, const Options& shared, const std::string& prefix = "--") {
        prefix_ = prefix;
        model_.add_options(options);
        add_balance(options, shared);
        options.training_options(
            {"--aux-coef", "--aux", "--aux-over", "--z-coef", "--balance", "--gamma",
             "--force-balance", "--skew", "--capacity-factor", "--drop"},
            Another::refused);
        options
            .choice("--dispatch", experts_.dispatch,
                    {{"plain", Dispatch::plain},
                     {"expert", Dispatch::expert},
                     {"rank", Dispatch::rank}},
                    "expert: a copy of a token's row travels to each of its experts; plain: the "
                    "same with nothing that overlaps; rank: one copy to each rank that has some "
                    "of them")
            .only_if([this] { return experts_.capacity_factor == 0; },
                     "with --capacity-factor every expert has rows of its own");
        options
            .add("--max-nodes", experts_.max_nodes,
                 "A token chooses experts on at most so many nodes (--node-size), and its row "
                 "crosses the network once a node")
            .at_least(1)
            .only_if([&] { return shared.node_size > 0; },
                     "there is one node; simulate some with --node-size and --inter-gbps");
        options.choice(prefix + "overlap", experts_.overlap,
                       {{"none", ExpertOverlap::none},
                        {"gradients", ExpertOverlap::gradients},
                        {"shared", ExpertOverlap::shared},
                        {"chunks", ExpertOverlap::chunks},
                        {"batches", ExpertOverlap::batches}},
                       "gradients: while rows' gradients travel back, the weights' are computed. "
                       "shared: also the shared experts compute while rows travel. chunks: also "
                       "the experts, on another chunk of a micro-batch's tokens. batches: besides "
                       "the first two, another micro-batch");
        options
            .add(prefix + "chunks", experts_.chunks,
                 "Chunks of a micro-batch's tokens; must divide them")
            .between(2, 64)
            .only_if([this] { return experts_.overlap == ExpertOverlap::chunks; },
                     fmt::format("only {}overlap chunks cuts tokens into chunks", prefix))
            .show_default();
    }

    // The model's configuration as changed by the options; a dense model's is unchanged.
    LlamaConfig config(const Options& options) const {
        LlamaConfig config = options.config();
        ExpertsConfig& e = config.experts;
        if (e.count == 0) return config;
        model_.change(config, options);
        if (balance_ == "bias") e.selection_bias = true;
        if (experts_.max_nodes > 0) limit_nodes(config, options);
        e.aux = aux_ ? aux_ : e.aux ? e.aux : experts_.aux;
        e.aux_coefficient = aux_coefficient(e);
        validate(config);
        return config;
    }

    // Checks the options that depend on the model and on the `tokens` that a rank routes of a
    // micro-batch, and completes them.
    void check(const Options& options, const LlamaConfig& config, int64_t tokens) {
        experts_.aux = config.experts.aux.value_or(experts_.aux);
        experts_.aux_coefficient = config.experts.aux_coefficient;
        experts_.node_size = options.node_size;
        if (experts_.max_nodes > 0) experts_.dispatch = Dispatch::rank;
        if (experts_.max_nodes > 0 && experts_.capacity_factor > 0)
            user_error(
                "--max-nodes {}: rows of a fixed capacity take no detours; leave out "
                "--capacity-factor",
                experts_.max_nodes);
        experts_.gamma = config.experts.selection_bias ? gamma_ : 0;
        if (experts_.counts_first() && experts_.aux == Aux::sequence)
            user_error("--aux-over global: --aux sequence counts each sequence by itself");
        if (experts_.dispatch == Dispatch::plain) check_plain(config);
        if (experts_.overlap == ExpertOverlap::shared && config.experts.shared == 0)
            user_error("{}overlap shared: this model has no shared experts; see --shared", prefix_);
        if (experts_.overlap == ExpertOverlap::chunks) check_chunks(tokens);
        if (experts_.overlap == ExpertOverlap::batches) check_batches(options);
    }

private:
    void add_balance(OptionList& options, const Options& shared) {
        options
            .add("--aux-coef", aux_coefficient_,
                 "Coefficient of the auxiliary (load-balancing) loss. Default: the model's")
            .between(0, 1e3);
        const auto has_loss = [this, &shared] {
            return aux_coefficient(shared.config().experts) > 0;
        };
        const char* const no_loss = "the auxiliary loss has the coefficient 0; see --aux-coef";
        options
            .choice("--aux", aux_,
                    {{"hf", Aux::hf},
                     {"switch", Aux::switch_transformer},
                     {"megatron", Aux::megatron},
                     {"sequence", Aux::sequence}},
                    "Which one: Hugging Face's, Switch Transformer's, Megatron's, or DeepSeek's "
                    "over each sequence. Default: the model's")
            .only_if(has_loss, no_loss);
        options
            .choice("--aux-over", experts_.aux_over,
                    {{"micro-batch", AuxOver::micro_batch}, {"global", AuxOver::global}},
                    "The tokens over which it counts: a micro-batch's, or in a forward that "
                    "comes first those of the whole step")
            .only_if(has_loss, no_loss);
        options
            .add("--z-coef", experts_.z_coefficient,
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
        options.flag("--force-balance", experts_.force_balance,
                     "Give all experts equally many rows, whatever the routers say");
        options
            .add("--skew", experts_.skew,
                 "Send this share of all tokens to expert 0 first, and the rest evenly")
            .between(0, 1);
        options
            .add("--capacity-factor", experts_.capacity_factor,
                 "An expert takes this times a rank's mean number of rows and drops the rest. "
                 "Default: none is dropped")
            .between(0.01, 1e3);
        options
            .choice("--drop", experts_.drop,
                    {{"position", Drop::by_position}, {"score", Drop::by_score}},
                    "What is dropped: the last tokens, or those with the smallest weights")
            .only_if([this] { return experts_.capacity_factor > 0; },
                     "without --capacity-factor nothing is dropped");
    }
    void check_batches(const Options& options) const {
        if (experts_.ep == 1)
            user_error("{}overlap batches: with --ep 1 no row travels, so there is nothing to hide",
                       prefix_);
        if (options.grad_accum < 2)
            user_error(
                "{}overlap batches: a step has one micro-batch; with --grad-accum 2 its rows would "
                "travel while another one computes",
                prefix_);
        if (options.recompute.full_layers > 0)
            user_error(
                "{}overlap batches: --recompute full runs a layer's forward inside its backward, "
                "where it has no partner; none or selective",
                prefix_);
    }
    void check_plain(const LlamaConfig& config) const {
        if (config.experts.shared > 0)
            user_error("--dispatch plain: it has no shared experts, and this model has {}",
                       config.experts.shared);
        if (experts_.overlap != ExpertOverlap::none)
            user_error("--dispatch plain: nothing overlaps; leave out {}overlap", prefix_);
    }
    void check_chunks(int64_t tokens) const {
        if (experts_.ep == 1)
            user_error("{}overlap chunks: with --ep 1 no row travels, so there is nothing to hide",
                       prefix_);
        if (experts_.dispatch == Dispatch::rank)
            user_error(
                "{}overlap chunks: only with --dispatch expert; what a rank gets of other ranks' "
                "rows is known too late",
                prefix_);
        if (tokens % experts_.chunks != 0)
            user_error("--chunks {}: it must divide the {} tokens of a micro-batch",
                       experts_.chunks, tokens);
    }
    // Nodes are groups of the router: a token chooses within its best ones.
    void limit_nodes(LlamaConfig& config, const Options& options) const {
        const int ranks = Communicator::world().size(), ep = experts_.ep > 0 ? experts_.ep : ranks;
        ops::RouterSettings& r = config.experts.router;
        if (ep % options.node_size != 0)
            user_error("--max-nodes {}: --ep {} is not a whole number of nodes of {}",
                       experts_.max_nodes, ep, format_count(options.node_size, "rank"));
        if (experts_.dispatch == Dispatch::plain)
            user_error("--max-nodes {}: rows of --dispatch plain take no detours; leave it out",
                       experts_.max_nodes);
        if (model_.has_groups() || r.groups > 1)
            user_error("--max-nodes {}: nodes take the place of the router's groups",
                       experts_.max_nodes);
        const int nodes = ep / options.node_size;
        if (experts_.max_nodes > nodes)
            user_error("--max-nodes {}: there are {}", experts_.max_nodes,
                       format_count(nodes, "node"));
        if (config.experts.count % nodes != 0)
            user_error("--max-nodes {}: {} experts do not divide among {} nodes",
                       experts_.max_nodes, config.experts.count, nodes);
        r.groups = nodes, r.top_groups = experts_.max_nodes;
    }
    double aux_coefficient(const ExpertsConfig& e) const {
        if (aux_coefficient_ >= 0) return aux_coefficient_;
        return balance_ == "bias" || experts_.forced() ? 0 : e.aux_coefficient;
    }

    ExpertOptions& experts_;
    ModelChoices model_;
    double aux_coefficient_ = -1, gamma_ = 0.001;
    std::optional<Aux> aux_;
    std::string prefix_, balance_ = "loss";
};

// Why these options cannot work on shared tokens, for micro-batches of `sequences` sequences of
// `seq` tokens, in a pipeline of `pp` ranks. Empty if they can. All ranks that share tokens call
// it.
inline std::string why_not(const ExpertOptions& o, const SharedTokens& shared, int64_t sequences,
                           int64_t seq, int64_t pp) {
    if (pp > 1 && o.counts_first())
        return "--aux-over global counts the whole step's choices in a forward that comes first, "
               "which a pipeline does not run";
    if (pp > 1 && o.has_loss() && o.aux == Aux::hf)
        return "--aux hf counts all layers together, and a rank of a pipeline has some of them; "
               "--aux megatron counts each alone";
    if (shared.count() == 1) return "";
    if (o.capacity_factor > 0)
        return "--capacity-factor would drop other rows where ranks share a micro-batch's tokens";
    if (!o.has_loss() || o.aux != Aux::sequence) return "";
    // Its segments are an equal number of neighbouring rows for each sequence.
    const int64_t rows = sequences * seq / shared.count();
    bool equal = rows % sequences == 0;
    const std::vector<int64_t> tokens = shared.tokens_of(rows);
    for (int64_t n = 0; equal && n < rows; ++n)
        equal = tokens[size_t(n)] / seq == n / (rows / sequences);
    return on_all_ranks(*shared.ranks, equal)
               ? ""
               : "--aux sequence counts each sequence by itself, but a rank's rows are not an "
                 "equal part of each; --aux megatron counts a micro-batch";
}

}  // namespace ultrascale::expert_parallel
