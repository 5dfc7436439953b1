// The chapter's options, and which of them exclude each other.
#pragma once

#include "../8_tensor_parallel.h"
#include "comm/comm.h"
#include "lab/options/cli.h"
#include "shared_options.h"

namespace ultrascale::tensor_parallel {

struct Chapter {
    TensorOptions tensor;
    bool compare = false, cuda_graph = false;
    std::string demo;
    double memory_budget = 0;  // GiB; 0: none is given

    void add_options(OptionList& options, const Options& shared) {
        options
            .add("--tp", tensor.tp,
                 "Ranks that share each layer; must divide the number of ranks. Default: all")
            .between(1, 1 << 20);
        ultrascale::tensor_parallel::add_options(options, tensor);
        options
            .flag("--plain", tensor.plain,
                  "The idea alone: each linear makes its all-reduce where it needs it, and waits")
            .excludes({"--sequence-parallel", "--overlap", "--partition-checkpoints"})
            .only_if([this] { return !compare; }, "--compare has a row for it");
        options
            .choice("--same-seed", tensor.same_seed, {{"on", true}, {"off", false}},
                    "With --dropout: an element's mask does not depend on the rank (on), or each "
                    "rank draws its own (off)")
            .only_if([&shared] { return shared.dropout > 0; },
                     "there is nothing random without --dropout");
        options.training_options({"--same-seed"}, Another::told);
        add_cuda_graph(options, cuda_graph, shared)
            .only_if([this] { return tensor.overlap != Overlap::halves; },
                     "with --overlap halves two micro-batches take turns");
        options
            .flag("--compare", compare,
                  "Train the plain way, without and with sequence parallelism, and print one table")
            .excludes(training_outputs)
            .excludes(
                {"--sequence-parallel", "--keep-gathered", "--estimate", "--svg", "--cuda-graph"});
        options
            .add("--demo", demo,
                 "linear: a column and a row linear on matrices small enough to print; scaling: "
                 "speed and memory of --model on 1 to 32 GPUs, by formula")
            .one_of({"linear", "scaling"})
            .excludes(training_outputs)
            .excludes({"--compare", "--estimate", "--svg", "--cuda-graph"})
            .reads({"--json", "--html"}, "its matrices are small enough to print",
                   [this] { return demo == "linear"; })
            .reads({"--json", "--html", "--model", "--layers", "--load", "--seq", "--micro-batch",
                    "--dtype", "--fp32-grads", "--recompute", "--attention", "--loss-chunk"},
                   "its formulas do not have it", [this] { return demo == "scaling"; });
        add_memory_budget(options, memory_budget)
            .only_if([this] { return tensor.overlap != Overlap::halves; },
                     "with --overlap halves all layers recompute alike; try --recompute full");
    }

    void check(const Options& options) {
        if (demo == "linear") options.refuse_figures("--demo linear");
        const int ranks = Communicator::world().size();
        if (tensor.tp == 0) tensor.tp = ranks;
        if (ranks % tensor.tp != 0)
            user_error("--tp {}: {} cannot be split into groups of {}; tp must divide their number",
                       tensor.tp, format_count(ranks, "rank"), tensor.tp);
        complete(tensor, options.recompute);
        if (tensor.overlap == Overlap::halves) options.refuse_recompute_by_layer();
        if (compare && tensor.tp == 1)
            user_error("--compare: at least two ranks must share a layer; use --tp 2 or more");
        if (!options.svg.empty() && tensor.tp == 1)
            user_error("--svg: the picture is of a layer that ranks share; --tp 2 or more");
        if (!options.svg.empty() && tensor.overlap == Overlap::halves)
            user_error(
                "--svg: the picture counts the messages of one layer; with --overlap halves those "
                "of two alternate");
        if (compare) tensor.sequence_parallel = true;  // so that its requirements are checked
    }
};

}  // namespace ultrascale::tensor_parallel
