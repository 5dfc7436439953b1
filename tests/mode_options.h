// Every option of 09_5d_parallel with a value that is not its default, and the options without
// which it would have no effect. Two tests go through all of them in each mode of the program: what
// a mode does not read is refused (unit/mode_options_test.cpp), and what it reads changes what it
// prints (chapters/modes_test.cpp, chapters/long_modes_test.cpp).
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace ultrascale::test {

struct OneOfAll {
    std::string name, value;  // no value: a flag
    std::string with;         // what else it needs
};

inline const std::vector<OneOfAll>& all_options() {
    const std::string tp = "--tp 2 --sequence-parallel", cp = "--cp 2", pp = "--pp 2",
                      moe = "--model nano-moe --ep 2";
    static const std::vector<OneOfAll> all = {
        {"--model", "small", ""},
        {"--layers", "4", ""},
        {"--load", "DIR", ""},
        {"--save", "saved", ""},
        {"--save-every", "2", "--save saved"},
        {"--data", "README.md", ""},
        {"--val-data", "README.md", ""},
        {"--val-every", "2", "--val-data README.md"},
        {"--steps", "3", ""},
        {"--seq", "64", ""},
        {"--micro-batch", "2", ""},
        {"--grad-accum", "2", ""},
        {"--lr", "0.01", ""},
        {"--lr-schedule", "cosine", ""},
        {"--lr-steps", "9", "--lr-schedule cosine"},
        {"--warmup", "3", ""},
        {"--weight-decay", "0.3", ""},
        {"--clip", "0.5", ""},
        {"--seed", "7", ""},
        {"--shuffle", "", ""},
        {"--document-token", "10", ""},
        {"--ignore-token", "32", ""},
        {"--dtype", "bf16", ""},
        {"--fp32-grads", "", "--dtype bf16"},
        {"--recompute", "full", ""},
        {"--attention", "naive", ""},
        {"--loss-chunk", "512", "--model llama-3.2-1b --layers 2 --seq 4096"},
        {"--verify", "", ""},
        {"--sample", "4", ""},
        {"--prompt", "A", "--sample 4"},
        {"--temperature", "0.5", "--sample 4"},
        {"--explain", "", ""},
        {"--profile", "", ""},
        {"--report", "full", ""},
        {"--log-every", "2", ""},
        {"--json", "out.jsonl", ""},
        {"--html", "out.html", ""},
        {"--trace", "out.trace", ""},
        {"--svg", "pictures", ""},
        {"--peak-tflops", "2", ""},
        {"--copy-engines", "off", ""},
        {"--dropout", "0.1", ""},
        {"--node-size", "1", "--inter-gbps 1"},
        {"--inter-gbps", "1", "--node-size 1"},
        {"--device-memory", "0.5", ""},
        {"--estimate", "", ""},
        {"--dp", "2", ""},
        {"--tp", "2", "--sequence-parallel"},
        {"--cp", "2", ""},
        {"--ep", "2", "--model nano-moe"},
        {"--pp", "2", ""},
        {"--order", "pp,dp,ep,cp,tp", tp},
        {"--zero", "2", ""},
        {"--bucket-mb", "0.1", ""},
        {"--gather-overlap", "optimizer", "--zero 1"},
        {"--prefetch", "2", "--zero 3"},
        {"--keep-gathered", "on", "--zero 3"},
        {"--gather-dtype", "fp8", "--zero 3"},
        {"--reduce-dtype", "bf16", "--zero 3"},
        {"--offload", "optimizer", "--zero 1"},
        {"--sequence-parallel", "", "--tp 2"},
        {"--tp-keep-gathered", "on", tp},
        {"--tp-overlap", "chunk", tp},
        {"--tp-chunks", "4", tp + " --tp-overlap chunk"},
        {"--partition-checkpoints", "", "--tp 2 --recompute full"},
        {"--variant", "all-gather", cp},
        {"--layout", "contiguous", cp},
        {"--ulysses", "2", "--cp 4 --variant usp"},
        {"--tails", "on", cp},
        {"--merge", "bf16", cp},
        {"--ring-backward", "again", cp},
        {"--schedule", "interleaved", pp},
        {"--chunks", "4", pp + " --schedule interleaved"},
        {"--group", "4", pp + " --schedule interleaved --grad-accum 4"},
        {"--split", "5,3", pp},
        {"--experts", "4", moe},
        {"--top-k", "1", moe},
        {"--router", "sigmoid", moe},
        {"--renormalise", "off", moe},
        {"--scaling", "2", moe},
        {"--shared", "1", moe},
        {"--first-dense", "1", moe},
        {"--groups", "2", moe},
        {"--top-groups", "2", moe + " --groups 2"},
        {"--aux-coef", "0.1", moe},
        {"--aux", "hf", moe},
        {"--aux-over", "global", moe},
        {"--z-coef", "0.1", moe},
        {"--balance", "bias", moe},
        {"--gamma", "0.1", moe + " --balance bias"},
        {"--force-balance", "", moe},
        {"--skew", "0.5", moe},
        {"--capacity-factor", "1", moe},
        {"--drop", "score", moe + " --capacity-factor 1"},
        {"--dispatch", "rank", moe},
        {"--max-nodes", "1", moe + " --node-size 1 --inter-gbps 1"},
        {"--ep-overlap", "chunks", moe},
        {"--ep-chunks", "4", moe + " --ep-overlap chunks"},
        {"--recipe", "tensor", ""},
        {"--compare", "", ""},
        {"--plan", "", ""},
        {"--explain-layout", "", ""},
        {"--published", "", ""},
        {"--playbook", "", ""},
        {"--calibrate", "this.json", ""},
        {"--rehearse", "1/8", ""},
        {"--gpus", "16", ""},
        {"--hardware", "a100", ""},
        {"--batch-tokens", "2K", ""},
    };
    return all;
}

// A mode, and the options that it reads; or, where a run's are read, the options that it ignores.
struct ModeOptions {
    std::string mode, value;
    std::vector<std::string> reads, ignores;
    bool refuses(const std::string& option) const {
        const auto among = [&](const std::vector<std::string>& names) {
            return std::ranges::find(names, option) != names.end();
        };
        return option != mode && (ignores.empty() ? !among(reads) : among(ignores));
    }
};

inline const std::vector<ModeOptions>& all_modes() {
    static const std::vector<std::string> planned = {
        "--model",      "--layers",  "--load",        "--seq",        "--micro-batch",
        "--grad-accum", "--dtype",   "--fp32-grads",  "--recompute",  "--loss-chunk",
        "--json",       "--html",    "--node-size",   "--inter-gbps", "--device-memory",
        "--dp",         "--tp",      "--cp",          "--ep",         "--pp",
        "--zero",       "--variant", "--schedule",    "--chunks",     "--experts",
        "--top-k",      "--shared",  "--first-dense", "--recipe",     "--gpus",
        "--hardware"};
    const auto and_also = [](std::vector<std::string> names, const std::vector<std::string>& more) {
        names.insert(names.end(), more.begin(), more.end());
        return names;
    };
    static const std::vector<ModeOptions> all = {
        {"--plan", "", and_also(planned, {"--batch-tokens"}), {}},
        {"--explain-layout", "", and_also(planned, {"--sequence-parallel", "--bucket-mb"}), {}},
        {"--published", "", {"--json", "--html"}, {}},
        {"--playbook", "", {"--json", "--html", "--svg"}, {}},
        {"--calibrate",
         "this.json",
         {"--dtype", "--recipe", "--node-size", "--inter-gbps", "--copy-engines",
          "--device-memory"},
         {}},
        // These say what they would do in a run, or are one.
        {"--estimate", "", {}, {"--save",      "--save-every",  "--data",        "--val-data",
                                "--val-every", "--steps",       "--seed",        "--shuffle",
                                "--warmup",    "--lr-steps",    "--verify",      "--ignore-token",
                                "--sample",    "--prompt",      "--temperature", "--explain",
                                "--profile",   "--report",      "--log-every",   "--trace",
                                "--svg",       "--peak-tflops", "--copy-engines"}},
        {"--rehearse",
         "1/8",
         {},
         {"--save",         "--save-every", "--load",      "--val-data",    "--val-every",
          "--verify",       "--sample",     "--prompt",    "--temperature", "--peak-tflops",
          "--copy-engines", "--compare",    "--estimate",  "--plan",        "--explain-layout",
          "--published",    "--playbook",   "--calibrate", "--gpus",        "--batch-tokens"}},
        {"--compare",
         "",
         {},
         {"--save",
          "--trace",
          "--val-data",
          "--sample",
          "--explain",
          "--profile",
          "--log-every",
          "--report",
          "--save-every",
          "--val-every",
          "--prompt",
          "--temperature",
          "--verify",
          "--peak-tflops",
          "--lr",
          "--lr-schedule",
          "--lr-steps",
          "--warmup",
          "--weight-decay",
          "--clip",
          "--dp",
          "--tp",
          "--cp",
          "--ep",
          "--pp",
          "--zero",
          "--order",
          "--estimate",
          "--max-nodes",
          "--plan",
          "--explain-layout",
          "--published",
          "--playbook",
          "--calibrate",
          "--rehearse"}},
    };
    return all;
}

}  // namespace ultrascale::test
