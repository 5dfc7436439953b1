// The chapter's options, and which of them exclude each other.
#pragma once

#include "batch_ramp.h"
#include "comm/comm.h"
#include "lab/options/cli.h"
#include "seq_ramp.h"
#include "train/run.h"

namespace ultrascale::single_gpu {

struct Chapter {
    std::string batch_ramp, seq_ramp, compare, demo, settings;
    bool naive_mean = false, noise_scale = false, fresh_grads = false, cuda_graph = false;
    double memory_budget = 0;  // GiB; 0: none is given

    static Options defaults() {
        Options options;
        options.whole_matrices = true;
        return options;
    }

    void add_options(OptionList& options, const Options& shared) {
        options
            .flag("--naive-mean", naive_mean,
                  "Average the micro-batches' own means: wrong if their numbers of targets differ")
            .only_if([this, &shared] { return shared.grad_accum > 1 || !batch_ramp.empty(); },
                     "with one micro-batch a step its mean is the right one; use --grad-accum 2 or "
                     "more");
        options
            .add("--batch-ramp", batch_ramp,
                 "SIZE:STEPS,...,SIZE: sequences per step, and for how many steps, or both in "
                 "tokens (16M:69B,32M); replaces --grad-accum")
            .excludes({"--grad-accum"});
        options
            .add("--seq-ramp", seq_ramp,
                 "LENGTH:SPAN,...,LENGTH: tokens per sequence, and for how many steps or which "
                 "part of the training (2048:90%,8192); a step's tokens stay the same")
            .excludes({"--seq"});
        options.flag("--fresh-grads", fresh_grads,
                     "Allocate gradients when a unit's backward begins, and free them after the "
                     "update");
        options.flag("--noise-scale", noise_scale,
                     "Estimate the critical batch size (needs 2 micro-batches a step)");
        add_cuda_graph(options, cuda_graph).excludes({"--fresh-grads", "--noise-scale"});
        options
            .add("--compare", compare,
                 "attention or recompute: measure the alternatives in one table")
            .one_of({"attention", "recompute"})
            .excludes(training_outputs)
            .excludes({"--estimate", "--svg", "--seq-ramp", "--fresh-grads", "--cuda-graph"});
        options
            .add("--demo", demo,
                 "parameters, activations, batch, latent: the formulas with their numbers; "
                 "scales: the sizes of a model's tensors; "
                 "memory: what a rank of any layout holds, with --html as a page with sliders; "
                 "launches: the host's clock against the device's; "
                 "failures: how often a large cluster should save")
            .one_of({"parameters", "activations", "scales", "batch", "latent", "memory", "launches",
                     "failures"})
            .excludes(training_outputs)
            .excludes({"--estimate", "--svg", "--compare", "--seq-ramp", "--fresh-grads",
                       "--noise-scale", "--cuda-graph"})
            .reads({"--json", "--html"}, "its numbers are those of papers",
                   [this] {
                       return demo == "parameters" || demo == "activations" || demo == "latent";
                   })
            .reads({"--json", "--html", "--model", "--layers", "--load", "--micro-batch", "--seq",
                    "--dtype", "--fp32-grads", "--attention"},
                   "it counts a micro-batch's tensors", [this] { return demo == "scales"; })
            .reads({"--json", "--html", "--settings", "--model", "--layers", "--load", "--seq",
                    "--micro-batch", "--grad-accum", "--dtype", "--fp32-grads", "--recompute",
                    "--attention"},
                   "no formula of memory has it", [this] { return demo == "memory"; })
            .reads({"--json", "--html", "--seed"}, "its cluster is imagined",
                   [this] { return demo == "failures"; })
            .reads({"--json", "--html", "--dtype"}, "it times launches",
                   [this] { return demo == "launches"; })
            .reads({"--json", "--html", "--batch-ramp", "--micro-batch", "--seq", "--model",
                    "--layers", "--load"},
                   "it is about the tokens of a batch", [this] { return demo == "batch"; })
            .reads({"--json", "--html"}, "without --batch-ramp it shows MiniMax-01's batches",
                   [this] { return demo == "batch" && batch_ramp.empty(); });
        options
            .add("--settings", settings,
                 "With --demo memory: tp=8,pp=4,... sets the formulas' letters; layouts are parted "
                 "by semicolons")
            .only_if([this] { return demo == "memory"; }, "only --demo memory has letters");
        add_memory_budget(options, memory_budget);
        options.training_options({"--naive-mean"}, Another::refused);
        options.training_options({"--batch-ramp", "--seq-ramp"}, Another::told);
    }

    void check(const Options& options) const {
        if (!demo.empty() && demo != "memory") options.refuse_figures("--demo " + demo);
        if (Communicator::world().size() > 1)
            user_error("00_single_gpu runs on one device: start it with one rank");
    }
    // The number of sequences per step, which may grow during training. Throws UserError if a step
    // is too small or too large.
    BatchRamp ramp(const Options& options) const {
        const int64_t B = options.micro_batch;
        const int64_t seq = options.seq > 0 ? options.seq : options.config().default_seq;
        const double sequences = std::min(double(B) * double(options.grad_accum), 9e18);
        const BatchRamp ramp(batch_ramp, int64_t(sequences), B, seq);
        checked_sequences(double(ramp.largest()));
        if (noise_scale && ramp.largest() < 2 * B)
            user_error("--noise-scale needs two micro-batches a step: {}",
                       batch_ramp.empty()
                           ? "--grad-accum 2"
                           : fmt::format("a size of at least {} in --batch-ramp", 2 * B));
        return ramp;
    }
    // The lengths of the sequences, if they grow. Percentages are of the training up to this run's
    // end.
    SeqRamp lengths(const Options& options) const {
        return seq_ramp.empty() ? SeqRamp()
                                : SeqRamp(seq_ramp, first_step(options) + options.steps);
    }
    DataSlice slice(const Options& options) const {
        return {.micro_batch = options.micro_batch,
                .mean = naive_mean ? MeanOver::micro_batch : MeanOver::batch};
    }
    static int64_t first_step(const Options& options) {  // of this run: 0, or where it resumes
        const bool resumes = !options.load.empty() && has_training_state(options.load);
        return resumes ? load_training_state(options.load).step : 0;
    }
};

}  // namespace ultrascale::single_gpu
