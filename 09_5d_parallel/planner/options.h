// The planner's options, and the modes that they choose. None of them starts the ranks it talks
// about: one process is enough.
#pragma once

#include "../techniques.h"
#include "report/cli.h"
#include "report/estimate.h"

namespace ultrascale {

struct PlannerOptions {
    bool plan = false, explain_layout = false, published = false, playbook = false;
    int64_t gpus = 0;
    std::string hardware = "h100", batch_tokens, rehearse, calibrate;

    // Whether one of the modes below is asked for, instead of a training.
    bool asked() const {
        return plan || explain_layout || published || playbook || !calibrate.empty();
    }

    void add_options(OptionList& options, const Options& shared) {
        options
            .flag("--plan", plan,
                  "Which layout of --gpus is the fastest that fits: the ten best, by formula")
            .excludes(training_outputs)
            .excludes({"--compare", "--estimate"});
        options
            .flag(
                "--explain-layout", explain_layout,
                "Time and memory of the layout that the other options name, on --gpus, by formula")
            .excludes(training_outputs)
            .excludes({"--compare", "--estimate", "--plan"});
        options
            .flag("--published", published,
                  "What --plan would have said of published runs, beside what was published")
            .excludes(training_outputs)
            .excludes({"--compare", "--estimate", "--plan", "--explain-layout"});
        options
            .flag("--playbook", playbook,
                  "The playbook's tables of memory and best layouts, by formula; --svg draws them")
            .excludes(training_outputs)
            .excludes({"--compare", "--estimate", "--plan", "--explain-layout", "--published"});
        options
            .add("--calibrate", calibrate,
                 "FILE: measure products, attention, memory and links of the ranks that run, and "
                 "write them for --hardware FILE")
            .excludes(training_outputs)
            .excludes({"--compare", "--estimate", "--plan", "--explain-layout", "--published",
                       "--playbook"});
        options
            .add("--rehearse", rehearse,
                 "Like 17/6144: train as rank 17 of 6144, alone; what it communicates is replaced "
                 "by "
                 "waits as long as --hardware's links would take")
            .excludes({"--compare", "--estimate", "--plan", "--explain-layout", "--published",
                       "--save", "--load", "--val-data", "--verify"});
        const auto plans = [this] { return plan || explain_layout || !rehearse.empty(); };
        options
            .add("--gpus", gpus,
                 "With --plan, --explain-layout and --estimate: ranks, none of which is started")
            .between(1, 1 << 24)
            .only_if([this, &shared] { return plan || explain_layout || shared.estimate; },
                     "only what is predicted needs no ranks");
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

// "1M" -> 1048576; K, M and B (1024^3) may follow the number. UserError if it is not one.
int64_t tokens_of(const std::string& text);

// What --rehearse names: "17/6144".
struct Rehearsed {
    int rank, ranks;
};
Rehearsed rehearsed_rank(const std::string& text);
// From now on imagined ranks' calls last as long as on this hardware.
void imagine_hardware(const std::string& name, const Axes& axes);

// --estimate --gpus: memory by place in the pipeline, and which place has most and why. The
// techniques are complete.
void print_places(const Options& options, const StepShape& shape, const Techniques& techniques);

// --calibrate, on all ranks. `train`: a short training, with more tensors than measuring took,
// after which a process on a CPU holds what one that trains holds.
bool write_calibration(const PlannerOptions& given, const Options& options,
                       const std::function<void()>& train);
// --published: returns whether the errors are as small as they should be.
bool print_published(const Options& options, const StepShape& shape);

// Does what was asked; `techniques`: those of the other options. Returns whether published rows are
// as near as they should be.
bool run_planner(const PlannerOptions& planner, const Options& options, const StepShape& shape,
                 const Techniques& techniques);

}  // namespace ultrascale
