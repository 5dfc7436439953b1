// The options that all training chapters share.
#include "cli.h"
#include "core/error.h"
#include "files/file.h"

namespace ultrascale {

void add_shared_options(OptionList& options, Options& o) {
    options.add("--model", o.model, "Preset, or a directory with a config.json")
        .only_if([&o] { return o.load.empty() || o.resume; },
                 "the model is the one in --load's directory")
        .show_default();
    options.add("--layers", o.layers, "Override the model's depth").at_least(1);
    options.add("--load", o.load,
                "Hugging Face Llama directory to load; a training run saved there resumes");
    const OneOption save =
        options.add("--save", o.save, "Directory in which to save the model at the end");
    const OneOption save_every =
        options
            .add("--save-every", o.save_every,
                 "Also save to checkpoint-STEP in that directory every this many steps; the last "
                 "two are kept")
            .at_least(1)
            .needs(save);
    options
        .flag("--save-async", o.save_async,
              "With --save-every: only copy to host memory, and write the files beside the next "
              "steps")
        .needs(save_every);
    options
        .flag("--resume", o.resume,
              "Go on with the run in --save's directory; start a new one if there is none")
        .needs(save)
        .excludes({"--load"});
    options.add(
        "--data", o.data,
        "Text file (each byte is a token) or .bin file (uint16 tokens; uint32 for a vocabulary "
        "above 65,536). Default: the text that comes with the project, or a resumed run's file");
    const OneOption val_data = options.add(
        "--val-data", o.val_data,
        "Validation data: a file like --data's whose loss is measured but which is not trained on");
    options
        .add("--val-every", o.val_every, "Validate every this many steps, and after the last one")
        .at_least(1)
        .needs(val_data)
        .show_default();
    options.add("--steps", o.steps, "Optimizer steps").at_least(0).show_default();
    options
        .add("--until-step", o.until_step,
             "Train until this step of the whole run, however often it has been resumed")
        .at_least(1)
        .excludes({"--steps"});
    options
        .add("--seq", o.seq, "Sequence length in tokens. Default: the preset's, or a resumed run's")
        .at_least(1);
    options.add("--micro-batch", o.micro_batch, "Sequences per forward and backward")
        .at_least(1)
        .show_default();
    options.add("--grad-accum", o.grad_accum, "Micro-batches per step").at_least(1).show_default();
    options.add("--lr", o.optimizer.lr, "Learning rate").between(0, 1e6).show_default();
    options.choice("--lr-schedule", o.optimizer.cosine, {{"constant", false}, {"cosine", true}},
                   "Learning-rate schedule");
    options
        .add("--lr-steps", o.optimizer.total_steps,
             "Step at which the cosine schedule ends. Default: this run's last step")
        .at_least(1)
        .only_if([&o] { return o.optimizer.cosine; },
                 "a constant rate has no end; only --lr-schedule cosine has one");
    options.add("--warmup", o.optimizer.warmup, "Steps of linear warm-up")
        .at_least(0)
        .show_default();
    if (o.whole_matrices) {
        options.choice("--optimizer", o.optimizer.muon, {{"adamw", false}, {"muon", true}},
                       "AdamW for all parameters, or Muon for the matrices of layers");
        options.training_options({"--optimizer"}, Another::refused);
    }
    options.add("--weight-decay", o.optimizer.weight_decay, "Decoupled weight decay of matrices")
        .between(0, 1e6)
        .show_default();
    options.add("--clip", o.optimizer.clip, "Clip the gradient to this global norm; 0: off")
        .between(0, 1e30)
        .show_default();
    options.add("--seed", o.seed, "Seed of the weights and of --shuffle")
        .between(0, INT64_MAX)
        .show_default();
    options.flag("--shuffle", o.shuffle, "Permute the samples");
    options
        .add("--document-token", o.document_token,
             "Token that starts a document: attention does not reach into earlier documents, "
             "positions restart, and as a target this token does not count")
        .at_least(0);
    options
        .add(
            "--window", o.window,
            "Attention's sliding window: a token sees this many keys, its own and those before it. "
            "Default: the checkpoint's, or all")
        .at_least(1);
    options
        .add("--prefix", o.prefix,
             "This many first tokens of each sequence see each other in both directions, and the "
             "loss counts only what follows them (a prefix-LM)")
        .at_least(1);
    options
        .add("--ignore-token", o.ignore_token,
             "Targets equal to this token become -100 and do not count in the loss")
        .at_least(0);
    options.choice("--dtype", o.dtype, {{"fp32", DType::fp32}, {"bf16", DType::bf16}},
                   "Weights and activations (bf16 keeps fp32 master weights)");
    options.flag("--fp32-grads", o.fp32_grads, "With bf16: accumulate gradients in fp32");
    options.text(
        "--recompute",
        [&o](const std::string& text) {
            const std::optional<Recompute> recompute = Recompute::parse(text);
            if (!recompute)
                user_error(
                    "--recompute {}: give none, selective or full, for the first layers only "
                    "full:8 or selective:8, or both, full:8,selective:12",
                    printable(text));
            o.recompute = *recompute;
        },
        [&o] { return o.recompute.text(); },
        "What is computed again in backward: none, selective (attention's T x T matrix) or full "
        "(all but a layer's input); full:8 for the first 8 layers, full:8,selective:12 for the "
        "next 12, too");
    options.choice("--attention", o.attention,
                   {{"flash", AttentionKind::flash}, {"naive", AttentionKind::naive}},
                   "Attention in tiles (flash), or with the whole T x T matrix in memory (naive)");
    options
        .add("--loss-chunk", o.loss_chunk,
             "Compute the loss in chunks of this many tokens, so that only their logits exist at "
             "once; 0: the whole micro-batch at once")
        .at_least(0);
    options.flag(
        "--verify,!--no-verify", [&o](bool on) { o.verify = on; },
        "Compare the first 6 steps with plain training on one device. Default: on for models under "
        "5 M parameters");
    options.add("--sample", o.sample, "Generate this many bytes of text after the training")
        .at_least(0);
    const auto samples = [&o] { return o.sample > 0; };
    options.add("--prompt", o.prompt, "With --sample: the text to continue")
        .only_if(samples, "it is for --sample")
        .show_default();
    options
        .add("--temperature", o.temperature,
             "With --sample: below 1 likely tokens become likelier, above 1 less so")
        .between(1e-3, 1e3)
        .only_if(samples, "it is for --sample")
        .show_default();
    options.flag("--explain", o.explain,
                 "Print the events of one step in the order in which they happen");
    options.flag("--profile", o.profile,
                 "Print the most expensive operations, and which rank is slowest in which phase");
    options.flag("--checksums", o.checksums,
                 "Take checksums of each rank's data, gradients and weights in each step, and "
                 "compare copies");
    options.choice("--report", o.full_report, {{"short", false}, {"full", true}},
                   "At the end print the results only (short), or also the formulas, tables and "
                   "charts that explain them (full)");
    options
        .add("--log-every", o.log_every,
             "Print a line every this many steps, and for the first and the last one")
        .at_least(1)
        .show_default();
    options.add("--json", o.json,
                "Write one JSON object per step or per table row, and a summary, to this file");
    options.add("--html", o.html,
                "Write a page about the run for a browser to this file: figures, charts, a "
                "timeline of all ranks");
    options.add("--trace", o.trace, "Write a trace for Chrome or Perfetto to this file");
    options.add("--svg", o.svg, "Directory to write the chapter's pictures of this run to")
        .only_if([&o] { return o.steps > 0; }, "there is no step to draw; --steps 1 or more");
    options
        .add("--peak-tflops", o.peak_tflops,
             "The device's dense peak in TFLOP/s, for MFU. Default: the datasheet's (GPU) or "
             "measured (CPU)")
        .between(1e-9, 1e9);
    options.choice("--copy-engines", o.copy_engines, {{"on", true}, {"off", false}},
                   "On GPUs of one machine: run large collectives as copies into the other GPUs' "
                   "memory (on), or all with NCCL's kernels (off)");
    options
        .add("--dropout", o.dropout,
             "Dropout probability for everything that is added to the residual stream, and in a "
             "GPT also for attention's probabilities")
        .between(0, 0.99);
    options
        .flag("--keep-masks", o.keep_masks,
              "With --dropout: keep what others keep for backward, its masks and, in a GPT, its "
              "results and GELU's, instead of drawing and computing them again")
        .only_if([&o] { return o.dropout > 0; }, "there is no dropout; see --dropout");
    const OneOption size =
        options
            .add("--node-size", o.node_size,
                 "Simulate nodes of this many ranks, with slow links between the nodes")
            .between(1, 1e6);
    const OneOption rate =
        options
            .add("--inter-gbps", o.inter_gbps,
                 "With --node-size: rate of each rank's network card between the nodes, Gbit/s")
            .between(1e-3, 1e5);
    size.needs(rate), rate.needs(size);
    options
        .add("--hang-seconds", o.hang_seconds,
             "End the job if a rank waits longer than this for others in a step (ten times as long "
             "in the first one, and between steps); 0: never")
        .between(0, 1e6)
        .show_default();
    options
        .add("--device-memory", o.device_memory_gib,
             "Pretend that the device has this many GiB of memory")
        .between(1e-6, 1e9);
    options
        .flag("--estimate", o.estimate,
              "Predict what this many ranks would hold and send, without allocating or training "
              "anything")
        .ignores(both(training_outputs, training_course),
                 "it is about what a rank holds and sends in any step")
        .ignores({"--document-token"}, "the data decide what it saves; an estimate has none")
        .ignores({"--prefix"}, "a step sends and holds the same with and without it");
    options.training_options({"--shuffle", "--document-token", "--window", "--prefix",
                              "--ignore-token", "--dtype", "--dropout"},
                             Another::refused);
    options.training_options({"--lr", "--lr-schedule", "--lr-steps", "--warmup", "--weight-decay",
                              "--clip", "--seed", "--fp32-grads", "--attention", "--loss-chunk"},
                             Another::told);
    options.training_options({"--micro-batch", "--grad-accum"}, Another::allowed);
}

OneOption add_memory_budget(OptionList& options, double& gib) {
    return options
        .add("--memory-budget", gib,
             "Choose the layers that recompute: the fewest FLOPs with which a rank is predicted to "
             "hold at most this many GiB")
        .between(1e-6, 1e9)
        .excludes({"--recompute", "--compare", "--demo"});
}

OneOption add_cuda_graph(OptionList& options, bool& on) {
    return options
        .flag(
            "--cuda-graph", on,
            "On a GPU: record the operations of a micro-batch once, and replay them at one launch")
        .excludes({"--estimate"});
}
OneOption add_cuda_graph(OptionList& options, bool& on, const Options& shared) {
    return add_cuda_graph(options, on)
        .only_if([&shared] { return !shared.copy_engines; },
                 "copies into other GPUs' memory cannot be recorded, but NCCL's kernels can: add "
                 "--copy-engines off");
}

}  // namespace ultrascale
