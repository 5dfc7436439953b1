// --sync diloco adds: ranks that communicate only every H steps (DiLoCo; Douillard et al. 2023,
// https://arxiv.org/abs/2311.08105). With H = 10 a rank sends a tenth of the bytes (MEASURED.md).
//
//     rank 0   | AdamW step | ... | step H |--.                              .--> theta --> ...
//     rank 1   | AdamW step | ... | step H |--+-- all-reduce, outer update --+--> theta --> ...
//     rank 2   | AdamW step | ... | step H |--'                              '--> theta --> ...
//                no communication, own data       once in H steps
//
// Each rank trains its own copy of the weights on its own samples. The distance that it has moved
// is its part of an "outer gradient". The mean over all ranks drives a Nesterov momentum update of
// theta, the outer weights, which are the same everywhere:
//
//     delta = mean over ranks of (theta - local weights)    one all-reduce of Psi elements, fp32
//     m     = mu m + delta                                  mu = --outer-momentum
//     theta = theta - eta (delta + mu m)                    eta = --outer-lr
//     local weights = theta                                 AdamW's own moments stay with the rank
//
// Summing gradients moves Psi elements in every step, DiLoCo only in every H-th. It is meant for
// links so slow that nothing can hide them (between data centres). It is a different algorithm: the
// result is not that of one device with the whole batch, and how well it learns depends on H, eta
// and mu. With eta = 1, mu = 0 it averages the weights (local SGD, FedAvg); the paper takes H =
// 500, eta = 0.7, mu = 0.9, after ordinary pre-training.
//
// It costs 8 bytes a parameter for theta and m in fp32, and 4 more for delta during an outer step.
#pragma once

#include <string>
#include <vector>

#include "comm/comm.h"
#include "core/ops.h"
#include "model/llama.h"
#include "train/step.h"
#include "train/updater.h"

namespace ultrascale::data_parallel {

struct DiLoCoOptions {
    int64_t inner_steps = 10;
    double lr = 0.7, momentum = 0.9;
};

class DiLoCo {
public:
    // All ranks must hold the same weights now; they become theta.
    DiLoCo(const ParameterList& parameters, Updater& optimizer, const Communicator& ranks,
           const DiLoCoOptions& options)
        : parameters_(parameters), ranks_(ranks), options_(options) {
        outer_ = Tensor::empty({parameters.local_numel()}, DType::fp32, Memory::optimizer);
        momentum_ = Tensor::zeros({parameters.local_numel()}, DType::fp32, Memory::optimizer);
        for (const auto& p : parameters) local_.push_back(p->value);
        if (local_.front().dtype() != DType::fp32) {  // AdamW then updates the fp32 master copy
            local_.clear();
            for (const TensorPart& state : optimizer.states())
                if (state.name.starts_with("master.")) local_.push_back(state.tensor);
            check(local_.size() == parameters.size(), "every parameter has a master copy");
        }
        for (size_t i = 0; i < local_.size(); ++i) ops::copy(of(outer_, i), local_[i]);
    }

    // Called after inner step number `done` of the run (1, 2, ...). Makes an outer step every H
    // steps and after the last one, so that the run ends with one model.
    void after_step(int64_t done, bool last) {
        if (done % options_.inner_steps != 0 && !last) return;
        const OpSpan span("outer step", 0, 0, "phase");
        const TraceName what(TraceName::pass, "outer step");
        explain("DiLoCo: delta = mean of (theta - local weights), Nesterov, local weights = theta");
        // exercise 01.4 begin: delta, its mean, Nesterov momentum; all four lines of the formula
        const Tensor delta = Tensor::empty(outer_.shape(), DType::fp32, Memory::communication);
        ops::copy(delta, outer_);
        for (size_t i = 0; i < local_.size(); ++i) ops::add(of(delta, i), local_[i], -1);
        ranks_.all_reduce(delta, Reduce::average);
        ops::scale(momentum_, float(options_.momentum));
        ops::add(momentum_, delta);
        ops::add(outer_, delta, -float(options_.lr));
        ops::add(outer_, momentum_, -float(options_.lr * options_.momentum));
        // exercise 01.4 end
        size_t i = 0;
        for (const auto& p : parameters_) {
            ops::copy(local_[i], of(outer_, i));
            if (p->value.dtype() != DType::fp32) ops::copy(p->value, local_[i]);
            ++i;
        }
    }

    // Averages the loss, the votes to stop, and the squared norm over the ranks, so that all ranks
    // agree whether they are finite.
    void finish(Step& step, const Tensor& own_norm) const {
        const Tensor all = Tensor::empty({3}, DType::fp64, Memory::workspace);
        phase("loss", [&] {
            step.vote();
            ops::copy(all.slice(0, 2), step.sums);
            ops::copy(all.slice(2, 3), own_norm);
            ranks_.all_reduce(all, Reduce::average);
        });
        const std::vector<double> means = all.to_host<double>();
        step.finish(means[0], means[2], means[1]);
    }

private:
    Tensor of(const Tensor& flat, size_t i) const {
        int64_t begin = 0;
        for (size_t k = 0; k < i; ++k) begin += local_[k].numel();
        return flat.slice(begin, begin + local_[i].numel()).view(local_[i].shape());
    }

    const ParameterList& parameters_;
    const Communicator& ranks_;
    DiLoCoOptions options_;
    Tensor outer_, momentum_;    // theta and m: (Psi) fp32
    std::vector<Tensor> local_;  // this rank's weights in fp32, in the parameters' order
};

// Step number `done` of the run: each rank trains on the mean over its own samples (step.h:
// MeanOver::own_samples); if an outer step is due, it follows.
inline void diloco_step(Step& step, Llama& model, Updater& optimizer, DiLoCo& diloco, int64_t done,
                        bool last) {
    model.parameters().begin_gradients(step.accumulated);
    for (MicroBatch batch : step.micro_batches()) {
        Saved saved;
        model.forward(batch, saved);
        model.backward(batch, saved);
    }
    const Tensor own_norm = optimizer.squared_norm();
    optimizer.step(step.learning_rate, own_norm);
    diloco.after_step(done, last);
    diloco.finish(step, own_norm);
}

}  // namespace ultrascale::data_parallel
