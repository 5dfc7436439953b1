// --post-validation: a step without a barrier. Clipping needs the norm of the whole model's
// gradient, so all ranks would have to wait for the last one before any of them could update; the
// bubbles would come back however well the schedule has filled them. But in most steps nothing is
// clipped. So each rank updates as soon as it has its own gradients, as if nothing had to be
// clipped, begins the next step, and learns there whether it was right:
//
//     rank 0   ... W7 | update | F0 F1 F2 F3 | confirmed | B0 ...
//     rank 1     ... W7 | update | F0 F1 F2  | confirmed | ...      the parts of the norm run down
//     rank 2       ... W7 | update | F0 F1   | confirmed |          the ranks; the last one has all
//     rank 3         ... W7 | update | F0    | confirmed |          of them, and they run up again
//
// If the norm must be clipped (or is not a finite number although it might be), every rank returns
// to the weights and states that it has kept, updates with the whole norm, and repeats the forwards
// since then. So the result is the same, bit by bit, as with the barrier. Arithmetic cannot undo
// AdamW without rounding, so copies are needed: a parameter's value and its two moments, 12 bytes
// in fp32 (bf16: 14, with the master copy).
//
// (Qi et al. update with the sum of the norm's parts so far. A rank's own part serves as well: if
// either of them clips, so does the whole norm, which decides; and no rank waits for the one before
// it. Two ranks that hold the same weight, a tied embedding, still wait for each other: its
// gradients must be summed before the update.)
// Qi et al., "Zero Bubble Pipeline Parallelism", 2023 (arXiv 2401.10241), section 4.
#pragma once

#include <cmath>

#include "core/trace.h"
#include "train/step.h"
#include "train/updater.h"

namespace ultrascale::pipeline {

class PostValidation : public PlainUpdater {
public:
    // All ranks of the mesh, which has the axes pp and dp, call it after the parameters have got
    // storage.
    PostValidation(ParameterList& parameters, const Options& options, const Mesh& mesh)
        : PlainUpdater(parameters, options, &mesh),
          pp_(mesh.group("pp")),
          dp_(mesh.group("dp")),
          down_group_(pp_.split(0, pp_.rank(), "norm down")),
          up_group_(pp_.split(0, pp_.rank(), "norm up")),
          host_(Tensor::empty({slots()}, DType::fp64, Memory::host)) {
        for (const Communicator& group : {down_group_, up_group_})
            group.open_mailbox(bytes_of_parts(pp_.size()));
    }
    TrainingState start() override {
        const TrainingState state = PlainUpdater::start();
        for (const TensorPart& part : values()) keep(part);
        for (const TensorPart& part : optimizer_->states()) keep(part);
        return state;
    }

    // Updates with this rank's part of the norm and sends that part on. Does not wait.
    void update_unconfirmed(Step& step) {
        check(!step_, "an update before the previous one was confirmed");
        step_ = &step;
        const Tensor own = own_squared_norm();
        phase("update, not yet confirmed", [&] {
            step.sum_loss(dp_);
            send_parts(own, step.sums);
            for (size_t i = 0; i < originals_.size(); ++i) ops::copy(copies_[i], originals_[i]);
            update(step.learning_rate, own);
        });
    }

    // Waits until the previous step's norm has arrived, and finishes that step. Returns whether its
    // update was wrong and has been repeated. Does nothing if there is no such step.
    bool confirm() {
        if (!step_) return false;
        works_.clear();
        copy_async(host_, all_, stream_);
        stream_.synchronize();  // the host waits for the numbers, but not for the device's work
        const double* const parts = host_.as<double>();
        double squared = 0, loss = 0, votes = 0;
        for (int r = 0; r < pp_.size(); ++r) {
            const double* const own = parts + r * numbers;
            squared += own[0], loss += own[1], votes += own[2];
        }
        const bool wrong = must_repeat(squared);
        if (wrong) {
            for (size_t i = 0; i < originals_.size(); ++i) ops::copy(originals_[i], copies_[i]);
            optimizer_->set_steps_done(optimizer_->steps_done() - 1);
            update(step_->learning_rate,
                   Tensor::from_host<double>(std::vector{squared}, {1}, Memory::workspace));
            ++repeated_;
        }
        std::exchange(step_, nullptr)->finish(loss, squared, votes);
        return wrong;
    }
    int64_t repeated() const { return repeated_; }  // steps
    // Waits for the messages under way, before a run ends whose last update stays unconfirmed.
    void finish() override { works_.clear(); }

    // Each rank's part of the norm, part of the loss, and vote to stop.
    static constexpr int64_t numbers = 3;
    static int64_t bytes_of_parts(int ranks) { return ranks * numbers * int64_t(sizeof(double)); }

private:
    int64_t slots() const { return pp_.size() * numbers; }

    // Whether AdamW scales a gradient of this norm down (or cannot tell).
    bool must_repeat(double squared) const {
        const double clip = options_.optimizer.clip;
        return clip > 0 && !(clip / (std::sqrt(squared) + 1e-6) >= 1);
    }

    void keep(const TensorPart& part) {
        originals_.push_back(part.tensor);
        copies_.push_back(
            Tensor::empty(part.tensor.shape(), part.tensor.dtype(), Memory::optimizer));
    }

    // Sends the parts down the ranks, each of which adds its own, and up again, on a stream of its
    // own. One stream serves both directions, because a message upwards needs what has come down:
    // an event of another stream would not cover a message that goes through the host because ranks
    // share a GPU.
    void send_parts(const Tensor& own, const Tensor& loss_and_votes) {
        const int rank = pp_.rank(), last = pp_.size() - 1;
        const Tensor parts = Tensor::zeros({slots()}, DType::fp64, Memory::workspace);
        const int64_t here = rank * numbers, next = here + numbers;
        ops::copy(parts.slice(here, here + 1), own);
        ops::copy(parts.slice(here + 1, next), loss_and_votes);
        if (rank > 0) works_.push_back(down_group_.recv(parts.slice(0, here), rank - 1, stream_));
        if (rank < last)
            works_.push_back(down_group_.send(parts.slice(0, next), rank + 1, stream_));
        const Tensor all =
            rank == last ? parts : Tensor::empty({slots()}, DType::fp64, Memory::workspace);
        if (rank < last) works_.push_back(up_group_.recv(all, rank + 1, stream_));
        if (rank > 0) works_.push_back(up_group_.send(all, rank - 1, stream_));
        all_ = all;
    }

    const Communicator &pp_, &dp_;
    Communicator down_group_, up_group_;
    Stream stream_{"norm"};
    Tensor host_, all_;  // the parts of the former step's norm, and its loss
    std::vector<Work> works_;
    std::vector<Tensor> originals_, copies_;
    Step* step_ = nullptr;  // not yet confirmed
    int64_t repeated_ = 0;
};

}  // namespace ultrascale::pipeline
