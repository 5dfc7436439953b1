// The options that the chapter shares with 09_5d_parallel, which of them exclude each other, and
// their description in a run's header.
#pragma once

#include <fmt/format.h>

#include <string>

#include "../tensor_options.h"
#include "core/error.h"
#include "lab/options/option_list.h"
#include "model/llama.h"

namespace ultrascale::tensor_parallel {

// All options but --tp and --same-seed. `prefix` precedes the names that other techniques have.
inline void add_options(OptionList& options, TensorOptions& tensor,
                        const std::string& prefix = "--") {
    options.flag("--sequence-parallel", tensor.sequence_parallel,
                 "Norms, residuals and dropout on 1/tp of the tokens");
    options
        .choice(prefix + "keep-gathered", tensor.keep_gathered, {{"on", true}, {"off", false}},
                "With --sequence-parallel: keep a column linear's gathered input (on) or "
                "gather it again in backward (off)")
        .only_if([&tensor] { return tensor.sequence_parallel; },
                 "only --sequence-parallel gathers a linear's input");
    std::map<std::string, Overlap> overlaps{
        {"none", Overlap::none}, {"async", Overlap::async}, {"chunk", Overlap::chunk}};
    // 09 has schedules of its own.
    if (prefix == "--") overlaps["halves"] = Overlap::halves;
    options.choice(
        prefix + "overlap", tensor.overlap, overlaps,
        "What hides communication: nothing; the weight gradient's GEMM (async); besides, "
        "the rest of the GEMM it belongs to (chunk)" +
            std::string(prefix == "--" ? ", or the micro-batch's other half (halves)" : ""));
    options
        .add(prefix + "chunks", tensor.chunks,
             fmt::format("With {}overlap chunk: parts that a GEMM is cut into", prefix))
        .between(2, 64)
        .only_if([&tensor] { return tensor.overlap == Overlap::chunk; },
                 fmt::format("it is for {}overlap chunk", prefix))
        .show_default();
    options.flag("--partition-checkpoints", tensor.partition_checkpoints,
                 "With --recompute full: each rank keeps 1/tp of a layer's input");
}
// Completes the options for a number of ranks that is known. UserError if they exclude each other.
inline void complete(TensorOptions& o, const Recompute& recompute) {
    if (o.tp == 1) {  // no other rank to share with
        o.sequence_parallel = o.keep_gathered = o.partition_checkpoints = false;
        if (o.overlap == Overlap::halves) o.overlap = Overlap::none;
    }
    if (o.partition_checkpoints && (recompute.full_layers == 0 || o.sequence_parallel))
        user_error(
            "--partition-checkpoints: needs --recompute full, and no --sequence-parallel, "
            "which makes shards of the checkpoints already");
}

// "tp 4 x dp 2, sequence parallel; overlap none", for micro-batches of so many rows.
inline std::string describe(const TensorOptions& o, int64_t replicas, int64_t rows,
                            double dropout) {
    std::string text = fmt::format("tp {} x dp {}", o.tp, replicas);
    if (o.sequence_parallel)
        text +=
            o.keep_gathered ? ", sequence parallel, gathered inputs kept" : ", sequence parallel";
    if (o.plain) text += ", plain";
    text += fmt::format("; overlap {}", overlap_names[int(o.overlap)]);
    if (o.overlap == Overlap::chunk)
        text += fmt::format(" in {} chunks{}", o.chunks,
                            row_chunks(o, rows) > 1 ? "" : ", which do not divide the rows: one");
    if (o.partition_checkpoints) text += "; partitioned checkpoints";
    if (dropout > 0)
        text += fmt::format("; dropout {}, {}", dropout,
                            o.same_seed ? "by element" : "a seed for each rank");
    return text;
}

}  // namespace ultrascale::tensor_parallel
