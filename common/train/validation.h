// Validation: the loss on text on which the model is not trained.
//
// While the model learns, the loss on its training samples falls; when it starts to memorise them
// (overfitting), the loss on other samples rises again. --val-data names a file of such samples,
// and --val-every says how often to measure. Validation runs forward only and does not change a bit
// of the training.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include "comm/comm.h"
#include "core/trace.h"
#include "data.h"
#include "lab/options/cli.h"
#include "model/llama.h"

namespace ultrascale {

// Sums instead of a mean, so that ranks with different samples can add up theirs.
struct LossSum {
    double sum = 0;
    int64_t targets = 0;  // number of counted targets
    double mean() const { return sum / double(targets); }
};

// The loss of `samples`, `micro_batch` at a time (the last micro-batch may be smaller). `forward`
// adds this rank's share of the loss to context.loss, for the whole micro-batch or this rank's
// `part` of it (step.h: DataSlice). The shares of `loss_group`'s ranks are added up at the end.
// The host waits for the device once, at the end. --profile does not include these operations;
// --trace shows one span.
inline LossSum validation_loss(const std::function<void(Context&)>& forward,
                               const DataLoader& loader, Range samples, int64_t micro_batch,
                               const Communicator* loss_group = nullptr,
                               const std::function<HostBatch(const HostBatch&)>& part = {}) {
    const Untraced one_span("validation");
    const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
    LossSum result;
    for (int64_t first = samples.begin; first < samples.end; first += micro_batch) {
        const HostBatch host = loader.batch(first, std::min(micro_batch, samples.end - first));
        result.targets += host.counted_targets;
        Context context{
            .batch = to_device(part ? part(host) : host), .loss = loss, .training = false};
        forward(context);
    }
    if (loss_group) loss_group->all_reduce(loss);
    result.sum = loss.to_host<double>()[0];
    return result;
}

// --val-data and --val-every: the file, opened and checked before the training starts, and the
// steps after which it is used.
class Validation {
public:
    // `data` are the training's options, so that the same targets count. (Even if shuffled, the
    // first samples() samples are all samples.)
    Validation(const Options& options, int64_t vocab, const DataOptions& data)
        : file_(options.val_data, vocab), loader_(file_, data), options_(options) {
        if (loader_.counted_targets(0, loader_.samples()) == 0)
            user_error("--val-data {}: every target is ignored, so there is no loss", file_.path());
    }
    bool due(int64_t step, bool last) const { return last || step % options_.val_every == 0; }
    const DataLoader& loader() const { return loader_; }
    // Without a `part`, every rank computes all samples.
    double loss(const std::function<void(Context&)>& forward,
                const Communicator* loss_group = nullptr,
                const std::function<HostBatch(const HostBatch&)>& part = {}) {
        const CommunicationCounts before = communication_counts();
        const Range all{0, loader_.samples()};
        const double mean =
            validation_loss(forward, loader_, all, options_.micro_batch, loss_group, part).mean();
        sent_ = difference(sent_, difference(before, communication_counts()));  // the sum of both
        return mean;
    }
    const CommunicationCounts& sent() const {
        return sent_;
    }  // in all validations; belongs to no training step
    std::string description() const {
        return fmt::format("{}, {}, every {}", file_.description(),
                           format_count(loader_.samples(), "sample"),
                           format_count(options_.val_every, "step"));
    }

private:
    TokenFile file_;
    DataLoader loader_;
    const Options& options_;
    CommunicationCounts sent_{};
};

}  // namespace ultrascale
