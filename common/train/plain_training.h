// What --verify compares with: the same training on this rank alone, the plain way.
//
// Plain means: the whole global batch in one forward and backward (or in micro-batches, where
// asked), attention with the T x T matrix, no recomputation, the loss in one piece, no parallelism.
//
// It can be repeated from a start that is displaced: each weight by a rounding unit in fp32; in
// bf16, where a unit is 1/256 of a value, one weight in 64. How far such a training drifts from the
// first one is how far two correct runs may come to be apart. It takes attention in tiles: some
// gradients are nothing but attention's rounding (with a single key the queries' and keys' are
// exactly 0 the plain way, and not quite 0 in tiles), and AdamW makes whole steps of them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "data.h"
#include "files/checkpoint.h"
#include "model/optimizer.h"
#include "report/cli.h"

namespace ultrascale {

class PlainTraining {
public:
    using Values = std::map<std::string, std::vector<float>>;  // whole tensors by name
    struct Result {
        std::vector<double> losses;
        Values gradient, weights;  // of the first step, before clipping; after the last step
    };

    // Step s takes `batch_sizes[s]` sequences, `micro_batch` at a time; 0: all at once. `change`
    // adds to the model's parts what is computed besides (experts). Keeps the loader.
    PlainTraining(const Options& options, const LlamaConfig& config, const DataLoader& loader,
                  std::vector<int64_t> batch_sizes, const std::function<void(Parts&)>& change,
                  int64_t micro_batch = 0)
        : options_(options),
          config_(config),
          loader_(loader),
          batch_sizes_(std::move(batch_sizes)),
          change_(change),
          micro_batch_(micro_batch) {}

    // 0: from where the options say, fresh or where --load left off; this comes first. Any other
    // number: from there displaced, each number in another way.
    Result train(uint64_t displacement);

    // A weight where such a training starts.
    std::vector<float> start_of(const std::string& name, uint64_t displacement) const;

private:
    void start(ParameterList& parameters, AdamW& optimizer);
    void start_displaced(ParameterList& parameters, AdamW& optimizer, uint64_t displacement) const;

    Options options_;
    LlamaConfig config_;
    const DataLoader& loader_;
    std::vector<int64_t> batch_sizes_;
    std::function<void(Parts&)> change_;
    int64_t micro_batch_;
    // Where the first training started: the weights, and where a run goes on the optimizer's
    // states, too. Kept, as what --load names may be another checkpoint by the time of the next
    // training.
    Values start_;
    TrainingState state_;
};

}  // namespace ultrascale
