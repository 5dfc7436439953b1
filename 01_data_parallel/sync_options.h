// Which gradient synchroniser the options name.
#pragma once

#include <memory>

#include "bucket.h"
#include "naive.h"
#include "overlap.h"
#include "ring_sync.h"

namespace ultrascale {

enum class SyncKind { naive, overlap, bucket, ring };

struct SyncOptions {
    SyncKind kind = SyncKind::bucket;
    double bucket_mb = 25;  // MiB, as PyTorch's default
    RingDirections ring_directions = RingDirections::one;
};

inline std::unique_ptr<GradientSync> make_sync(const SyncOptions& options, ParameterList& parameters, const Communicator& ranks) {
    switch (options.kind) {
        case SyncKind::naive: return std::make_unique<NaiveSync>(parameters, ranks);
        case SyncKind::overlap: return std::make_unique<OverlapSync>(parameters, ranks);
        case SyncKind::bucket: return std::make_unique<BucketSync>(parameters, ranks, int64_t(options.bucket_mb * (1 << 20)));
        case SyncKind::ring: return std::make_unique<RingSync>(parameters, ranks, options.ring_directions);
    }
    return nullptr;
}

inline std::string describe(const SyncOptions& options, bool every_micro_batch) {
    const std::string what[] = {"naive: an all-reduce per parameter after the backward",
                                "overlap: an all-reduce per parameter, during the backward",
                                fmt::format("bucket: all-reduces of {:.4g} MiB, during the backward", options.bucket_mb),
                                fmt::format("ring: our own ring all-reduce, {} way{}, after the backward",
                                            options.ring_directions == RingDirections::one ? "one" : "both",
                                            options.ring_directions == RingDirections::one ? "" : "s")};
    return what[int(options.kind)] + (every_micro_batch ? "; after every micro-batch" : "");
}

}  // namespace ultrascale
