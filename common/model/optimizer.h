// The update: AdamW with fp32 states (and fp32 master weights if the weights have 16 bits),
// clipping by the global norm, and learning-rate schedules. muon.h has another one.
#pragma once

#include <memory>
#include <vector>

#include "parameter.h"

namespace ultrascale {

struct OptimizerOptions {
    double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
    double clip = 1.0;    // global norm; 0: do not clip
    bool cosine = false;  // false: constant
    int64_t warmup = 0;
    int64_t total_steps = 0;  // the step at which the cosine ends
    bool muon = false;        // matrices are updated by Muon
};

// The learning rate of step 0, 1, ...: it rises linearly over `warmup` steps, then stays constant
// or falls along a cosine to a tenth of its maximum at total_steps.
double learning_rate(const OptimizerOptions& options, int64_t step);

class AdamW {
public:
    virtual ~AdamW() = default;
    // The elements to update: a whole parameter, or the piece that this rank owns, which begins at
    // the parameter's element `begin`.
    struct Item {
        const Parameter* parameter;
        int64_t begin;
        Tensor value;
        Tensor grad;  // empty: the parameter's gradient, at the time of the update
    };
    AdamW(std::vector<Item> items, const OptimizerOptions& options)
        : options_(options), items_(std::move(items)) {}
    AdamW(const ParameterList& parameters, const OptimizerOptions& options);  // all of them

    // Makes one update. The first call allocates the states, so the first step of a run has a
    // different memory profile than the rest. If the items' values are on the host (Memory::host),
    // so are the states and the norm, and the host computes the update.
    virtual void step(double lr, const Tensor& squared_norm);
    int64_t steps_done() const { return steps_; }

    // The states for a checkpoint: "exp_avg.<parameter>", "exp_avg_sq.<parameter>" and, for 16-bit
    // values, "master.<parameter>".
    virtual std::vector<TensorPart> states();
    void set_steps_done(int64_t steps) { steps_ = steps; }

protected:
    // New states: views of one flat fp32 tensor, one for each item, that begin as zeros; or as the
    // items' values, unless these are fp32, which are their own masters.
    static std::vector<Tensor> zeros_for(const std::vector<Item>& items);
    static std::vector<Tensor> masters_of(const std::vector<Item>& items);
    OptimizerOptions options_;

private:
    void allocate_states();
    std::vector<Item> items_;
    int64_t steps_ = 0;
    std::vector<Tensor> m_, v_, master_;  // one per item
};

// All of every parameter.
std::vector<AdamW::Item> items_of(const ParameterList& parameters);
// AdamW, or Muon if the options ask for it.
std::unique_ptr<AdamW> make_optimizer(std::vector<AdamW::Item> items,
                                      const OptimizerOptions& options);

}  // namespace ultrascale
