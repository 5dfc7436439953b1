// The planner's options, and the modes that they choose. None of them starts the ranks that it is
// about: one process is enough.
#pragma once

#include "../lab/chosen.h"
#include "lab/options/cli.h"
#include "lab/predict/estimate.h"

namespace ultrascale::five_d {

struct PlannerOptions {
    bool plan = false, explain_layout = false, published = false, playbook = false;
    int64_t gpus = 0;
    std::string hardware = "h100", batch_tokens, rehearse, calibrate;

    // Whether one of the modes below is asked for, instead of training.
    bool asked() const {
        return plan || explain_layout || published || playbook || !calibrate.empty();
    }

    // Whether the mode is about ranks other than those that run.
    bool imagines_ranks() const { return plan || explain_layout || !rehearse.empty() || gpus > 0; }

    // Each of these modes reads only some options; any other one is refused.
    void add_options(OptionList& options, const Options& shared) {
        const std::vector<std::string> cluster{"--gpus",       "--hardware",      "--node-size",
                                               "--inter-gbps", "--device-memory", "--json",
                                               "--html"};
        const std::vector<std::string> layout{"--model",
                                              "--layers",
                                              "--load",
                                              "--seq",
                                              "--dtype",
                                              "--fp32-grads",
                                              "--recipe",
                                              "--experts",
                                              "--top-k",
                                              "--shared",
                                              "--first-dense",
                                              "--loss-chunk",
                                              "--dp",
                                              "--tp",
                                              "--cp",
                                              "--ep",
                                              "--pp",
                                              "--order",
                                              "--zero",
                                              "--shard-size",
                                              "--bucket-mb",
                                              "--schedule",
                                              "--chunks",
                                              "--micro-batch",
                                              "--grad-accum",
                                              "--recompute",
                                              "--gather-dtype",
                                              "--reduce-dtype",
                                              "--keep-gathered",
                                              "--variant",
                                              "--layout",
                                              "--ulysses",
                                              "--bidirectional",
                                              "--ring-backward",
                                              "--dispatch",
                                              "--ep-overlap",
                                              "--max-nodes",
                                              "--capacity-factor"};
        options
            .flag(
                "--plan", plan,
                "Which layout of --gpus is the fastest that fits: the ten best, by formula. Axes, "
                "--zero, --micro-batch and the like are kept as they are given")
            .reads(both(both(cluster, layout), {"--batch-tokens"}), "no formula of a plan has it");
        options
            .flag(
                "--explain-layout", explain_layout,
                "Time and memory of the layout that the other options name, on --gpus, by formula")
            .reads(both(both(cluster, layout), {"--sequence-parallel", "--tp-keep-gathered"}),
                   "no formula of a plan has it");
        options
            .flag("--published", published,
                  "What --plan would have said of published runs, beside what was published")
            .reads({"--json", "--html"}, "the runs were published with all that there is to say");
        options
            .flag("--playbook", playbook,
                  "The playbook's tables of memory and best layouts, by formula; --svg draws them")
            .reads({"--json", "--html", "--svg"}, "the tables are the playbook's");
        options
            .add("--calibrate", calibrate,
                 "FILE: measure products, attention, memory and links of the ranks that run, and "
                 "write them for --hardware FILE")
            .reads({"--dtype", "--recipe", "--node-size", "--inter-gbps", "--copy-engines",
                    "--device-memory"},
                   "it measures the machine, in one dtype");
        options
            .add("--rehearse", rehearse,
                 "Like 17/6144: train as rank 17 of 6144, alone; what it communicates is replaced "
                 "by waits as long as --hardware's links would take")
            .ignores(both({"--compare", "--estimate", "--plan", "--explain-layout", "--published",
                           "--playbook", "--calibrate", "--gpus", "--batch-tokens"},
                          {"--save", "--save-every", "--save-async", "--load", "--val-data",
                           "--val-every", "--verify", "--sample", "--prompt", "--temperature",
                           "--peak-tflops", "--copy-engines", "--resume", "--hang-seconds"}),
                     "a rank that is alone learns nothing that could be kept or compared");
        const auto plans = [this] { return plan || explain_layout || !rehearse.empty(); };
        options
            .add("--gpus", gpus,
                 "With --plan, --explain-layout and --estimate: ranks, none of which is started")
            .between(1, 1 << 24)
            .only_if([this, &shared] { return plan || explain_layout || shared.estimate; },
                     "only what is predicted needs no ranks")
            .ignores({"--lr", "--lr-schedule", "--weight-decay", "--clip", "--node-size",
                      "--inter-gbps", "--bucket-mb"},
                     "--estimate then tells what a rank holds",
                     [&shared] { return shared.estimate; });
        options
            .add(
                "--hardware", hardware,
                "Of --plan, --explain-layout and --rehearse: h100, h200, a100, h800, or FILE.json, "
                "which --calibrate writes")
            .only_if(plans, "a run has the machine that it runs on")
            .show_default();
        options
            .add("--batch-tokens", batch_tokens,
                 "With --plan: tokens of a step over all ranks, like 1M. Default: 256 sequences")
            .only_if([this] { return plan; }, "a layout's own batch follows from its options");
    }
};

// Converts "1M" to 1048576, also with K or B (1024^3). Throws UserError if it is no number.
int64_t tokens_of(const std::string& text);

// The meaning of --rehearse "17/6144".
struct Rehearsed {
    int rank, ranks;
};
Rehearsed rehearsed_rank(const std::string& text);
// Makes imagined ranks' calls last as long as on --hardware's links, or --inter-gbps'.
void imagine_hardware(const PlannerOptions& given, const Options& options, const Axes& axes);

// --calibrate, on all ranks. `train` is a short training with more tensors than measuring took;
// after it a process on a CPU holds as much as one that trains.
bool write_calibration(const PlannerOptions& given, const Options& options,
                       const std::function<void()>& train);
// --published: returns whether the errors are within their bounds.
bool print_published(const Options& options, const StepShape& shape);

// Does what was asked; `techniques` are those of the other options. Returns false if published rows
// are further away than they should be.
bool run_planner(const PlannerOptions& planner, const Options& options, const StepShape& shape,
                 const Techniques& techniques);

}  // namespace ultrascale::five_d
