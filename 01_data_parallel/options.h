// What the chapter's options choose, and which of them do not go together.
#pragma once

#include "comm/comm.h"
#include "report/cli.h"
#include "syncs.h"

namespace ultrascale {

struct Chapter {
    SyncOptions sync;
    bool no_sync = true, compare = false;
    std::string demo;
    double largest_mib = 0;

    void add_options(OptionList& options, const Options& shared) {
        options.choice("--sync", sync.kind,
                       {{"naive", SyncKind::naive},
                        {"overlap", SyncKind::overlap},
                        {"bucket", SyncKind::bucket},
                        {"ring", SyncKind::ring},
                        {"hierarchical", SyncKind::hierarchical},
                        {"diloco", SyncKind::diloco}},
                       "How the gradients are summed; diloco: the weights meet, not the gradients");
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
            .choice("--ring-directions", sync.ring_directions,
                    {{"one", RingDirections::one}, {"both", RingDirections::both}},
                    "Of --sync ring: all one way, or half of it each way")
            .only_if([this] { return sync.kind == SyncKind::ring; }, "it is for --sync ring");
        options
            .choice("--no-sync", no_sync, {{"on", true}, {"off", false}},
                    "With --grad-accum: communicate after the last micro-batch only (on) or after "
                    "each (off)")
            .only_if([&shared] { return shared.grad_accum > 1; },
                     "a step has one micro-batch; --grad-accum 2 or more");
        const auto diloco = with({SyncKind::diloco});
        const char* const of_diloco = "it is for --sync diloco";
        options
            .add("--inner-steps", sync.diloco.inner_steps,
                 "Of --sync diloco: steps from one meeting to the next")
            .between(1, 1e9)
            .only_if(diloco, of_diloco)
            .show_default();
        options.add("--outer-lr", sync.diloco.lr, "Of --sync diloco: how far theta follows")
            .between(0, 100)
            .only_if(diloco, of_diloco)
            .show_default();
        options.add("--outer-momentum", sync.diloco.momentum, "Of --sync diloco: Nesterov's")
            .between(0, 1)
            .only_if(diloco, of_diloco)
            .show_default();
        options.flag("--compare", compare, "Train with each technique in turn and print one table")
            .excludes(training_outputs)
            .excludes({"--sync", "--grad-accum", "--no-sync"});
        options.add("--demo", demo, "collectives: what each one does; bandwidth: how fast they are")
            .one_of({"collectives", "bandwidth"})
            .excludes(training_outputs)
            .excludes({"--sync", "--compare"});
        options
            .add("--largest-mib", largest_mib,
                 "Of --demo bandwidth. Default: 1024 on GPUs, 16 on the CPU")
            .between(1e-3, 1e5)
            .only_if([this] { return demo == "bandwidth"; }, "it is for --demo bandwidth");
    }

    // --no-sync off: gradients are summed after each micro-batch, and added up.
    bool every_time(const Options& options) const { return !no_sync && options.grad_accum > 1; }
    // How the ranks sit in nodes: as the options pretend, else as the machines are.
    void check_and_find_nodes(const Options& options, const Communicator& world) {
        if (sync.kind == SyncKind::diloco && options.save_every > 0)
            user_error(
                "--save-every: no run goes on from a checkpoint of --sync diloco, whose ranks "
                "have an optimizer state each");
        if (sync.kind == SyncKind::diloco && !no_sync)
            user_error("--no-sync off: --sync diloco sums no gradients at all");
        if (demo == "collectives" && !options.json.empty())
            user_error("--json: --demo collectives has no figures to write; --demo bandwidth has");
        if (!options.svg.empty() && !compare && demo != "collectives")
            user_error("--svg has no effect: pictures are of --compare and of --demo collectives");
        if (!options.svg.empty() && (world.size() < 2 || (!compare && world.size() > 8)))
            user_error("--svg: the pictures are of 2 ranks or more, the ring's of at most 8");
        sync.ranks_per_node = options.node_size > 0 ? options.node_size : ranks_on_this_node();
        if (sync.kind != SyncKind::hierarchical) return;
        for (const std::string& there : world.gather_strings(std::to_string(sync.ranks_per_node)))
            if (there != std::to_string(sync.ranks_per_node))
                user_error(
                    "--sync hierarchical: nodes of {} and of {} ranks; all must have as many",
                    sync.ranks_per_node, there);
    }
    int64_t largest_bytes() const {  // of --demo bandwidth
        const double mib = largest_mib > 0 ? largest_mib : device_is_gpu() ? 1024 : 16;
        return int64_t(mib * (1 << 20));
    }
};

}  // namespace ultrascale
