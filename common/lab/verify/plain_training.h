// The reference of --verify: the same training in the plain way, on this rank alone.
//
// Plain means: the whole global batch in one forward and backward (or in micro-batches, if asked),
// attention with the T x T matrix, no recomputation, the loss in one piece, no parallelism.
//
// It can be repeated from displaced weights: if a run rounds to fp32, each weight is displaced by
// that unit; if it rounds to bf16, whose unit is 1/256 of a value, one weight in 64. The distance
// to which such a training drifts from the first one shows how far apart two correct runs may end.
// The repeated training computes attention in tiles: some gradients consist only of attention's
// rounding (with a single key the gradients of queries and keys are exactly 0 in the plain way, but
// not quite 0 in tiles), and AdamW turns them into full steps.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/threads.h"
#include "core/trace.h"
#include "files/checkpoint.h"
#include "lab/options/cli.h"
#include "model/optimizer.h"
#include "train/data.h"

namespace ultrascale {

// The training with which a run is compared: the plain one below, or a chapter's own if the run
// computes something that the plain one does not (08_mixed_precision).
class Reference {
public:
    using Values = std::map<std::string, std::vector<float>>;  // whole tensors by name
    struct Result {
        std::vector<double> losses;
        Values gradient, weights;  // first step, before clipping; after the last step
    };
    virtual ~Reference() = default;
    // 0 starts from --seed or from --load; this call must come first. Any other number starts from
    // the same weights, displaced in a different way for each number. Trains the first `steps`
    // steps.
    virtual Result train(uint64_t displacement, size_t steps) = 0;
    // The initial values of a weight in such a training.
    virtual std::vector<float> start_of(const std::string& name, uint64_t displacement) const = 0;
};

// While a rank trains for comparison, it uses all cores, and its memory and operations are not
// counted.
struct Aside {
    AllCores cores;
    UncountedMemory memory;
    Untraced untraced;
};

// Returns `values` of the weight of this name, displaced by about a rounding unit of the dtype.
std::vector<float> displaced(std::vector<float> values, const std::string& name,
                             uint64_t displacement, DType dtype);

class PlainTraining : public Reference {
public:
    // Step s takes `batch_sizes[s]` sequences, `micro_batch` at a time; 0: all at once. `change`
    // adds to the model's parts what the run computes besides (experts). `rounding`: weights are
    // displaced by a unit of this dtype; by default, of their own. Keeps a reference to the loader.
    PlainTraining(const Options& options, const LlamaConfig& config, const DataLoader& loader,
                  std::vector<int64_t> batch_sizes,
                  const std::function<void(ModuleFactories&)>& change, int64_t micro_batch = 0,
                  std::optional<DType> rounding = {})
        : options_(options),
          config_(config),
          loader_(loader),
          batch_sizes_(std::move(batch_sizes)),
          change_(change),
          micro_batch_(micro_batch),
          rounding_(rounding.value_or(options.dtype)) {}

    Result train(uint64_t displacement, size_t steps) override;
    std::vector<float> start_of(const std::string& name, uint64_t displacement) const override;

private:
    void start(ParameterList& parameters, AdamW& optimizer);
    void start_displaced(ParameterList& parameters, AdamW& optimizer, uint64_t displacement) const;

    Options options_;
    LlamaConfig config_;
    const DataLoader& loader_;
    std::vector<int64_t> batch_sizes_;
    std::function<void(ModuleFactories&)> change_;
    int64_t micro_batch_;
    DType rounding_;
    // The start of the first training: the weights, and for a resumed run the optimizer's states.
    // They are kept because --load may name a different checkpoint by the time of the next
    // training.
    Values start_;
    TrainingState state_;
};

}  // namespace ultrascale
