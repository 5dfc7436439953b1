// The ways to sum gradients that the options name.
#pragma once

#include <memory>

#include "../2_overlap.h"
#include "../6_ring_all_reduce.h"
#include "../6_tree_all_reduce.h"
#include "../7_hierarchical.h"
#include "../8_reduce_dtype.h"
#include "../9_diloco.h"

namespace ultrascale::data_parallel {

enum class ReduceDtype { as_gradients, fp32, bf16 };
enum class SyncKind { naive, overlap, bucket, ring, tree, hierarchical, diloco };

struct SyncOptions {
    SyncKind kind = SyncKind::bucket;
    double bucket_mb = 25;  // MiB, PyTorch's default
    ReduceDtype reduce_dtype = ReduceDtype::as_gradients;
    RingDirections ring_directions = RingDirections::one;
    int64_t tree_chunks = 32;    // of each half
    Nodes nodes = {.ranks = 1};  // hierarchical's
    DiLoCoOptions diloco;

    DType wire(DType gradients) const {  // the dtype in which gradients travel
        return reduce_dtype == ReduceDtype::as_gradients ? gradients
               : reduce_dtype == ReduceDtype::bf16       ? DType::bf16
                                                         : DType::fp32;
    }
};

// No communication: each rank keeps its own gradients. It is the baseline of compare.h; diloco,
// which communicates weights, uses it, too.
class NoSync : public GradientSync {
public:
    using GradientSync::GradientSync;
    void finish() override {}
};

inline std::unique_ptr<GradientSync> make_sync(const SyncOptions& options,
                                               ParameterList& parameters, const Mesh& mesh,
                                               DType gradients) {
    const int64_t width = dtype_bytes(gradients),
                  full = (int64_t(options.bucket_mb * (1 << 20)) + width - 1) / width;
    switch (options.kind) {
        case SyncKind::naive: return std::make_unique<NaiveSync>(parameters, mesh);
        case SyncKind::overlap: return std::make_unique<OverlapSync>(parameters, mesh);
        case SyncKind::bucket:
            if (const DType wire = options.wire(gradients); wire != gradients)
                return std::make_unique<ReduceDtypeSync>(parameters, mesh, full, wire);
            return std::make_unique<BucketSync>(parameters, mesh, full);
        case SyncKind::ring:
            return std::make_unique<RingSync>(parameters, mesh, options.ring_directions);
        case SyncKind::tree:
            return std::make_unique<TreeSync>(parameters, mesh, options.tree_chunks);
        case SyncKind::hierarchical:
            return std::make_unique<HierarchicalSync>(parameters, mesh, full, options.nodes);
        case SyncKind::diloco: return std::make_unique<NoSync>(parameters, mesh);
    }
    return nullptr;
}

// The description in the header and the report.
inline std::string describe(const SyncOptions& options, bool every_micro_batch) {
    const std::string what[] = {
        "naive: an all-reduce per parameter after the backward",
        "overlap: an all-reduce per parameter, during the backward",
        fmt::format("bucket: all-reduces of {:.4g} MiB{}, during the backward", options.bucket_mb,
                    options.reduce_dtype == ReduceDtype::bf16   ? " in bf16"
                    : options.reduce_dtype == ReduceDtype::fp32 ? " in fp32"
                                                                : ""),
        fmt::format("ring: our own ring all-reduce, {} way{}, after the backward",
                    options.ring_directions == RingDirections::one ? "one" : "both",
                    options.ring_directions == RingDirections::one ? "" : "s"),
        fmt::format("tree: our own double binary tree, {} a half, after the backward",
                    format_count(options.tree_chunks, "chunk")),
        fmt::format("hierarchical: buckets of {:.4g} MiB, inside nodes of {} and across",
                    options.bucket_mb, options.nodes.ranks),
        fmt::format("diloco: weights every {}, outer lr {:.4g}, momentum {:.4g}",
                    format_count(options.diloco.inner_steps, "step"), options.diloco.lr,
                    options.diloco.momentum)};
    return what[int(options.kind)] + (every_micro_batch ? "; after every micro-batch" : "");
}

}  // namespace ultrascale::data_parallel
