// The chapter's options, and which of them exclude each other.
#pragma once

#include "comm/comm.h"
#include "lab/options/cli.h"
#include "syncs.h"

namespace ultrascale::data_parallel {

struct Chapter {
    SyncOptions sync;
    bool no_sync = true, compare = false, cuda_graph = false;
    std::string demo, planet;
    double memory_budget = 0;  // GiB; 0: none is given
    double largest_mib = 0;
    double hop_us = 10, hop_gbps = 400;  // a fast network card; MEASURED.md has hops of 14 us

    void add_options(OptionList& options, const Options& shared) {
        options.choice("--sync", sync.kind,
                       {{"naive", SyncKind::naive},
                        {"overlap", SyncKind::overlap},
                        {"bucket", SyncKind::bucket},
                        {"ring", SyncKind::ring},
                        {"tree", SyncKind::tree},
                        {"hierarchical", SyncKind::hierarchical},
                        {"diloco", SyncKind::diloco}},
                       "How gradients are summed; diloco communicates weights instead");
        const auto with = [this](std::initializer_list<SyncKind> kinds) {
            return [this, kinds = std::vector<SyncKind>(kinds)] {
                return compare || std::ranges::count(kinds, sync.kind) > 0;
            };
        };
        options.add("--bucket-mb", sync.bucket_mb, "Size of a bucket in MiB")
            .between(1e-6, 1e6)
            .only_if(with({SyncKind::bucket, SyncKind::hierarchical}),
                     "it is for --sync bucket and hierarchical")
            .show_default();
        options
            .choice("--reduce-dtype", sync.reduce_dtype,
                    {{"gradients", ReduceDtype::as_gradients},
                     {"fp32", ReduceDtype::fp32},
                     {"bf16", ReduceDtype::bf16}},
                    "With --sync bucket: the dtype in which gradients travel; they are kept and "
                    "added up over micro-batches in their own")
            .only_if([this] { return sync.kind == SyncKind::bucket && !compare; },
                     "it is for --sync bucket");
        options.training_options({"--reduce-dtype"}, Another::told);
        options
            .choice("--ring-directions", sync.ring_directions,
                    {{"one", RingDirections::one}, {"both", RingDirections::both}},
                    "With --sync ring: send everything in one direction, or half in each")
            .only_if([this] { return sync.kind == SyncKind::ring; }, "it is for --sync ring");
        options
            .add("--tree-chunks", sync.tree_chunks,
                 "With --sync tree: chunks into which each tree's half is cut")
            .between(1, 1e6)
            .only_if(with({SyncKind::tree}), "it is for --sync tree")
            .show_default();
        options
            .choice("--no-sync", no_sync, {{"on", true}, {"off", false}},
                    "With --grad-accum: communicate after the last micro-batch only (on) or after "
                    "each (off)")
            .only_if([&shared] { return shared.grad_accum > 1; },
                     "it needs --grad-accum 2 or more; a step has only one micro-batch");
        const auto diloco = with({SyncKind::diloco});
        const char* const diloco_only = "it is for --sync diloco";
        options
            .add("--inner-steps", sync.diloco.inner_steps,
                 "With --sync diloco: steps between outer updates (H)")
            .between(1, 1e9)
            .only_if(diloco, diloco_only)
            .show_default();
        options.add("--outer-lr", sync.diloco.lr, "With --sync diloco: outer learning rate (eta)")
            .between(0, 100)
            .only_if(diloco, diloco_only)
            .show_default();
        options
            .add("--outer-momentum", sync.diloco.momentum,
                 "With --sync diloco: Nesterov momentum (mu) of the outer update")
            .between(0, 1)
            .only_if(diloco, diloco_only)
            .show_default();
        add_cuda_graph(options, cuda_graph, shared)
            .only_if(with({SyncKind::naive, SyncKind::overlap, SyncKind::bucket, SyncKind::diloco}),
                     "it is for --sync naive, overlap, bucket and diloco");
        options.flag("--compare", compare, "Train with each technique in turn and print one table")
            .excludes(training_outputs)
            .excludes({"--sync", "--grad-accum", "--no-sync", "--estimate", "--cuda-graph"});
        options
            .add(
                "--demo", demo,
                "collectives: what each one does; bandwidth: how fast they are; latency: a ring's "
                "hops on up to 1,024 ranks; tree: a ring beside a double binary tree; planet: data "
                "centres that are far apart")
            .one_of({"collectives", "bandwidth", "latency", "tree", "planet"})
            .excludes(training_outputs)
            .excludes({"--sync", "--compare", "--estimate", "--cuda-graph"})
            .reads({"--json", "--html", "--planet"}, "it is a formula",
                   [this] { return demo == "planet"; })
            .reads({"--json", "--html", "--svg", "--largest-mib", "--hop-us", "--hop-gbps",
                    "--node-size", "--inter-gbps", "--copy-engines", "--device-memory"},
                   "it is about the links", [this] { return demo != "planet" && demo != "tree"; })
            .reads(
                {"--json", "--html", "--hop-us", "--hop-gbps", "--copy-engines", "--device-memory"},
                "it pretends links of its own", [this] { return demo == "tree"; });
        options
            .add("--largest-mib", largest_mib,
                 "With --demo bandwidth and latency: size of the largest message in MiB. Default: "
                 "1024 on GPUs, 16 on the CPU")
            .between(1e-3, 1e5)
            .only_if([this] { return demo == "bandwidth" || demo == "latency"; },
                     "it is for --demo bandwidth and latency");
        const auto latency_demo = [this] { return demo == "latency" || demo == "tree"; };
        options
            .add("--hop-us", hop_us,
                 "With --demo latency and tree: what a hop takes in the formula, in us")
            .between(0, 1e6)
            .only_if(latency_demo, "it is for --demo latency and tree")
            .show_default();
        options
            .add("--hop-gbps", hop_gbps,
                 "With --demo latency and tree: a link's rate in the formula, in Gbit/s")
            .between(1e-3, 1e6)
            .only_if(latency_demo, "it is for --demo latency and tree")
            .show_default();
        options
            .add("--planet", planet,
                 "With --demo planet: params=72e12,bytes=2,sites=23,km=4800,tokens=1e8,"
                 "flops=2.83e21,H=500, each with this default")
            .only_if([this] { return demo == "planet"; }, "it is for --demo planet");
        add_memory_budget(options, memory_budget);
    }

    // With --no-sync off gradients are all-reduced after each micro-batch, and the results added
    // up.
    bool every_time(const Options& options) const { return !no_sync && options.grad_accum > 1; }
    // Also sets sync.nodes: to simulated nodes, or the machines.
    void check_and_find_nodes(const Options& options, const Communicator& world) {
        if (sync.kind == SyncKind::diloco && options.save_every > 0)
            user_error(
                "--save-every: a run cannot resume from a checkpoint of --sync diloco, where "
                "each rank has optimizer states of its own");
        if (sync.kind == SyncKind::diloco && !no_sync)
            user_error("--no-sync off: --sync diloco sums no gradients at all");
        if (demo == "collectives") options.refuse_figures("--demo collectives");
        const bool over_nodes = demo == "bandwidth" && options.node_size > 0;
        if (!options.svg.empty() && !compare && demo != "collectives" && !over_nodes)
            user_error(
                "--svg has no effect: pictures are of --compare, of --demo collectives, and with "
                "--node-size of --demo bandwidth");
        if (!options.svg.empty() &&
            (world.size() < 2 || (demo == "collectives" && world.size() > 8)))
            user_error("--svg: the pictures are of 2 ranks or more, the ring's of at most 8");
        if (!options.svg.empty() && over_nodes && world.size() < 2 * options.node_size)
            user_error("--svg: the picture is of two nodes or more; --node-size {} and {} make one",
                       options.node_size, format_count(world.size(), "rank"));
        if (options.node_size > 0)
            sync.nodes = {.ranks = options.node_size};
        else if (sync.kind == SyncKind::hierarchical)
            sync.nodes = machines();
        if (!sync.nodes.all_equal())
            user_error("--sync hierarchical: the nodes have different numbers of ranks, at most {}",
                       sync.nodes.ranks);
    }
    int64_t largest_bytes() const {  // of --demo bandwidth and latency
        const double mib = largest_mib > 0 ? largest_mib : device_is_gpu() ? 1024 : 16;
        return int64_t(mib * (1 << 20));
    }
};

}  // namespace ultrascale::data_parallel
