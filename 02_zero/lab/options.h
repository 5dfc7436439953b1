// The chapter's options, and which of them exclude each other.
#pragma once

#include "../7_hybrid.h"
#include "lab/options/cli.h"
#include "shared_options.h"

namespace ultrascale::zero {

struct Chapter {
    ZeroOptions zero;
    enum class Offload { none, optimizer, activations, both } offload = Offload::none;
    bool no_sync = true, compare = false;
    std::string demo;
    double memory_budget = 0;  // GiB; 0: none is given

    static Options defaults() {
        Options options;
        options.whole_matrices = true;
        return options;
    }

    void add_options(OptionList& options, const Options& shared) {
        options
            .add(
                "--stage", zero.stage,
                "What is sharded: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too")
            .between(0, 3)
            .only_if([this] { return !compare; }, "--compare takes each stage in turn")
            .show_default();
        options
            .flag("--plain", zero.plain,
                  "With --stage 1: the idea alone, all gradients summed after the last backward "
                  "and all parameters gathered after the update; nothing overlaps")
            .only_if([this] { return zero.stage == 1; }, "it is for stage 1")
            .only_if([this] { return !compare; }, "--compare has a row for it");
        ultrascale::zero::add_options(options, zero, compare);
        options
            .add("--secondary-shard", zero.secondary_shard,
                 "With stage 3: neighbouring ranks that share a second set of the parameters' "
                 "shards, from which all gathers of a step but a unit's first one come")
            .between(2, 1 << 20)
            .only_if([this] { return compare || zero.stage == 3; }, "it is for stage 3")
            .only_if([this] { return compare || !zero.keep_gathered; },
                     "--keep-gathered on gathers once a step")
            .only_if([this] { return compare || zero.shard_size == 0; },
                     "--shard-size keeps all gathers among these ranks")
            .excludes({"--gather-dtype"});
        options
            .choice("--cut", zero.cut, {{"unit", Cut::unit}, {"model", Cut::model}},
                    "With stage 3: what is gathered and reduced at a time, a unit or all")
            .only_if([this] { return compare || zero.stage == 3; }, "it is for stage 3");
        options.choice("--offload", offload,
                       {{"none", Offload::none},
                        {"optimizer", Offload::optimizer},
                        {"activations", Offload::activations},
                        {"both", Offload::both}},
                       "What is on the host: the optimizer's states and its update (stages 1 to "
                       "3), the layers' inputs (--recompute full)");
        options
            .choice("--no-sync", no_sync, {{"on", true}, {"off", false}},
                    "With --grad-accum, stages 0 and 1: communicate after the last micro-batch "
                    "only (on) or after each (off)")
            .only_if([&shared] { return shared.grad_accum > 1; },
                     "it needs --grad-accum 2 or more; a step has only one micro-batch")
            .only_if([this] { return compare || zero.stage <= 1; },
                     "stages 2 and 3 communicate after each micro-batch anyway")
            .only_if([this] { return compare || !zero.plain; }, "--plain communicates once a step");
        options
            .flag("--compare", compare,
                  "Train with each stage in turn and print one table; with --offload optimizer, "
                  "--shard-size, --secondary-shard, --keep-gathered on or --cut model, rows for "
                  "these")
            .excludes(training_outputs)
            .excludes({"--estimate"});
        options
            .add("--demo", demo,
                 "Tables by formula, without ranks: memory: ZeRO with data and tensor parallelism; "
                 "overlap: what hides over fast and slow links")
            .one_of({"memory", "overlap"})
            .excludes(training_outputs)
            .excludes({"--estimate", "--compare", "--svg", "--stage"})
            .reads({"--json", "--html", "--model", "--layers", "--load", "--seq", "--micro-batch",
                    "--peak-tflops"},
                   "its formulas do not have it", [this] { return demo == "overlap"; })
            .reads({"--json", "--html", "--model", "--layers", "--load"},
                   "its formulas do not have it", [this] { return demo == "memory"; });
        add_memory_budget(options, memory_budget);
    }

    void check(const Options& options) {
        const int ranks = Communicator::world().size();
        if (demo.empty()) check_shard_size(zero, ranks);
        if (zero.secondary_shard > 0 && ranks % zero.secondary_shard != 0)
            user_error("--secondary-shard {}: it must divide the {}", zero.secondary_shard,
                       format_count(ranks, "rank"));
        if (!demo.empty()) options.refuse_figures("--demo " + demo);
        if (!options.svg.empty() && !compare)
            user_error("--svg has no effect: the picture is of --compare");
        zero.offload = offload == Offload::optimizer || offload == Offload::both;
        zero.offload_activations = offload == Offload::activations || offload == Offload::both;
        if (zero.offload_activations && options.recompute.full_layers == 0 && memory_budget == 0)
            user_error(
                "--offload activations: it is the layers' kept inputs that go to the host; use "
                "--recompute full or --memory-budget");
        if (zero.offload_activations && compare)
            user_error("--compare: it compares what is sharded; use --offload optimizer");
        if (zero.offload && zero.stage == 0 && !compare)
            user_error(
                "--offload optimizer: stage 0 has no shards to offload; use --stage 1, 2 or 3");
        if (zero.offload && zero.plain)
            user_error(
                "--plain: its optimizer stays on the device; --stage 1 alone can offload it");
        zero.muon = options.optimizer.muon;
        if (zero.muon && !zero.plain && !compare)
            user_error(
                "--optimizer muon: the stages' shards cut through matrices, which Muon needs "
                "whole; "
                "add --plain");
        zero.every_micro_batch = !no_sync && options.grad_accum > 1;
    }
};

}  // namespace ultrascale::zero
