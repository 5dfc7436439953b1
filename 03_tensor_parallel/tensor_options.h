// What the chapter's options choose.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "core/error.h"
#include "core/tensor.h"
#include "lab/options/option_list.h"
#include "model/llama.h"

namespace ultrascale::tensor_parallel {

// How communication is hidden: not at all; by 5_async_backward.h; by that and 6_chunked_linear.h.
enum class Overlap { none, async, chunk };
inline constexpr const char* overlap_names[] = {"none", "async", "chunk"};

struct TensorOptions {
    int tp = 0;                      // ranks that share a layer; 0: all
    bool sequence_parallel = false;  // 4_sequence_parallel.h
    // keep a column linear's gathered input for its weight gradient instead of gathering it again
    bool keep_gathered = false;
    Overlap overlap = Overlap::none;
    int64_t chunks = 2;                  // of Overlap::chunk
    bool partition_checkpoints = false;  // 7_partition_checkpoints.h
    bool same_seed = true;               // every rank draws the same dropout mask for an element
};

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
    options.choice(
        prefix + "overlap", tensor.overlap,
        {{"none", Overlap::none}, {"async", Overlap::async}, {"chunk", Overlap::chunk}},
        "What hides communication: nothing; the weight gradient's GEMM (async); besides, the "
        "rest of the GEMM it belongs to (chunk)");
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
inline void complete(TensorOptions& o, Recompute recompute) {
    if (o.tp == 1)  // no other rank to share with
        o.sequence_parallel = o.keep_gathered = o.partition_checkpoints = false;
    if (o.partition_checkpoints && (recompute != Recompute::full || o.sequence_parallel))
        user_error(
            "--partition-checkpoints: needs --recompute full, and no --sequence-parallel, "
            "which makes shards of the checkpoints already");
}

// Into how many chunks a GEMM with so many rows is cut. With sequence parallelism every rank has an
// equal share of each chunk. So the number of chunks decides which rank has which token, and must
// depend on the rows alone.
inline int64_t row_chunks(const TensorOptions& options, int64_t rows) {
    const int64_t parts = options.chunks * (options.sequence_parallel ? options.tp : 1);
    return options.overlap == Overlap::chunk && rows % parts == 0 ? options.chunks : 1;
}

// The rows of chunk c of `chunks`, which must divide the rows; x is read as a matrix.
inline Tensor chunk_of(const Tensor& x, int64_t c, int64_t chunks) {
    const int64_t rows = x.rows() / chunks;
    return x.view({x.rows(), x.cols()}).slice(c * rows, (c + 1) * rows);
}

// "tp 4 x dp 2, sequence parallel; overlap none", for micro-batches of so many rows.
inline std::string describe(const TensorOptions& o, int64_t replicas, int64_t rows,
                            double dropout) {
    std::string text = fmt::format("tp {} x dp {}", o.tp, replicas);
    if (o.sequence_parallel)
        text +=
            o.keep_gathered ? ", sequence parallel, gathered inputs kept" : ", sequence parallel";
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
