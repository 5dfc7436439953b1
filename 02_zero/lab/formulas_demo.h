// --demo memory and --demo overlap: the tables of formulas.h for --model. Nothing is trained, and
// one process is enough.
#pragma once

#include "formulas.h"
#include "lab/report/report.h"
#include "train/run.h"

namespace ultrascale::zero {

inline void demo_memory(const LlamaConfig& c, const std::string& model) {
    print(fmt::format("{}, {:.3f} B parameters in bf16: GB (10^9) of a rank", model,
                      double(parameter_count(c)) / 1e9));
    print(fmt::format("  {:>3} {:>5} {:>6}  {:>5}   {:>10} {:>10} {:>10} {:>10}   {}", "tp", "dp",
                      "ranks", "stage", "parameters", "gradients", "optimizer", "sum", "in 80 GB"));
    for (int64_t tp : {1, 8})
        for (int64_t dp : {1, 8, 64, 512})
            for (int stage = 0; stage <= (dp == 1 ? 0 : 3); ++stage) {
                const RankBytes b = rank_bytes(c, tp, dp, stage);
                print(fmt::format(
                    "  {:>3} {:>5} {:>6}  {:>5}   {:>10.2f} {:>10.2f} {:>10.2f} "
                    "{:>10.2f}   {}",
                    stage == 0 ? fmt::format("{}", tp) : "",
                    stage == 0 ? fmt::format("{}", dp) : "",
                    stage == 0 ? fmt::format("{}", tp * dp) : "", stage, b.parameters / 1e9,
                    b.gradients / 1e9, b.optimizer / 1e9, b.total() / 1e9,
                    b.total() < 80e9 ? fmt::format("{:.0f} GB left", (80e9 - b.total()) / 1e9)
                                     : "no"));
            }
}

inline void demo_overlap(const Options& options, const LlamaConfig& c) {
    const double flops = (options.peak_tflops > 0 ? options.peak_tflops : 989.5) * 1e12;
    const int64_t seq = options.seq > 0 ? options.seq : c.default_seq;
    const double tokens = double(options.micro_batch) * double(seq);
    print(
        fmt::format("sending / computing; below 1 it hides. {}: {} x {} tokens a rank, {:.4g} "
                    "TFLOP/s",
                    options.model_name(), options.micro_batch, seq, flops / 1e12));
    print(fmt::format("  {:<21} {:>6} {:>5}  {:>5}  {:>8} {:>7}  {:>8} {:>8}  {:>9} {:>6}", "", "",
                      "", "", "ZeRO-1,2", "", "ZeRO-3", "", "tokens", "layer"));
    print(fmt::format("  {:<21} {:>6} {:>5}  {:>5}  {:>8} {:>7}  {:>8} {:>8}  {:>9} {:>6}", "link",
                      "GB/s", "ranks", "DP", "backward", "forward", "forward", "backward", "for 1",
                      "tp 8"));
    struct Link {
        const char* name;
        double bytes;
        int64_t ranks;
    };
    for (const Link& link : {Link{"NVLink 4, a node", 450e9, 8},
                             {"InfiniBand 400 Gbit/s", 50e9, 64},
                             {"Ethernet 100 Gbit/s", 12.5e9, 64},
                             {"Ethernet 10 Gbit/s", 1.25e9, 64}}) {
        const Overlap o = overlap_of_zero(flops, link.bytes, tokens, link.ranks);
        print(
            fmt::format("  {:<21} {:>6.4g} {:>5}  {:>5.2f}  {:>8.2f} {:>7.2f}  {:>8.2f} {:>8.2f}  "
                        "{:>9.0f} {:>6.2f}",
                        link.name, link.bytes / 1e9, link.ranks, o.data_parallel, o.zero1_backward,
                        o.zero1_forward, o.zero3, o.zero3, o.zero3 * tokens,
                        overlap_of_tensor_parallelism(c, flops, link.bytes, 8)));
    }
    print(
        "  tokens for 1: a rank's tokens a micro-batch from which ZeRO-3 hides. With A "
        "micro-batches");
    print(
        "  DP and ZeRO-1 send once a step, 1/A of this; ZeRO-3 in each, unless --keep-gathered "
        "on.");
    print("  tp 8: a layer of tensor parallelism over such links. More tokens do not help there.");
}

}  // namespace ultrascale::zero
