// One forward, one backward (1F1B) as a loop, in which each send and each receive stands where it
// happens. The model's layers are cut into as many stages as there are ranks, and rank r has stage
// r: it gets activations x from rank r-1 and sends y to rank r+1; it gets y's gradient dy from rank
// r+1, and sends that of x, dx, to rank r-1.
//
// The first rank has nobody above it: its stage begins with the embedding, and takes the tokens of
// the micro-batch instead of x. The last rank has nobody below it: its stage ends with the output
// head, which adds to the loss and begins the backward, so that there is neither y nor dy.
//
//     rank 0   F0 F1 F2 F3          D0 F4 D1 F5 D2    D3    D4 D5       F: forward
//     rank 1      F0 F1 F2       D0 F3 D1 F4 D2 F5 D3    D4 D5          D: backward
//     rank 2         F0 F1    D0 F2 D1 F3 D2 F4 D3 F5 D4 D5             0 to 5: micro-batches
//     rank 3            F0 D0 F1 D1 F2 D2 F3 D3 F4 D4 F5 D5
//              -- time -->
//
// Rank r of p begins with p-1-r forwards, the warm-up: one for each rank below it, to give it work.
// Then it does a forward and a backward in turn, and at the end the p-1-r backwards that are left.
// So it holds the activations of at most min(p-r, m) of its m micro-batches.
//
// A send may return only when its receiver has begun to receive (over MPI it is MPI_Isend and a
// wait, on GPUs ncclSend). So two ranks that send to each other at the same time would both wait
// for the other to receive. That happens in the middle part, after F3 on rank 0 and D0 on rank 1:
//
//     rank 0   F3   sends y3, wants dy0        both in one call, which sends and receives: the two
//     rank 1   D0   sends dx0, wants x3        messages (dx0 is dy0, y3 is x3) pass each other
//
// Every border between two ranks is crossed by m activations and m gradients, of b s h numbers each
// (sequences, tokens, hidden size), and a rank that waits for them computes nothing. The later
// files write the same order down as data (2_schedules/one_f_one_b.h), so that one executor can run
// any order, and send while it computes (4_executor). Narayanan et al., "PipeDream", 2019 (arXiv
// 1806.03377); "PipeDream-Flush", 2021 (2006.09503).
#pragma once

#include <algorithm>
#include <deque>

#include "comm/comm.h"
#include "model/llama.h"
#include "train/step.h"

namespace ultrascale::pipeline {

class Plain1F1B {
public:
    // `stage` is this rank's, a Llama with some of the layers. A message has this shape, (b, s, h),
    // and dtype. `stage` and `pp`, the pipeline's ranks, must live as long as this object.
    Plain1F1B(Llama& stage, const Communicator& pp, Shape shape, DType dtype)
        : stage_(stage), pp_(pp), shape_(std::move(shape)), dtype_(dtype) {}

    // Runs forward and backward of a step's micro-batches. Gradients and step.loss then hold what
    // this rank's stage contributes. `hooks` look on, or do what another technique adds.
    void run(Step& step, Hooks* hooks = nullptr) {
        step.call_hooks({hooks});  // the model will call them
        // exercise 05.7 begin: warm up; a forward, a backward; the rest
        const int64_t m = step.accumulated,
                      warmup = std::min<int64_t>(pp_.size() - 1 - pp_.rank(), m);
        // On the first rank all x are empty, on the last one all y and dy.
        for (int64_t i = 0; i < warmup; ++i) {
            Tensor x = receive(above_);
            Tensor y = forward(step.micro_batch(i), std::move(x));
            send(std::move(y), below_);
        }
        Tensor x = warmup < m ? receive(above_) : Tensor();
        for (int64_t i = warmup; i < m; ++i) {
            Tensor y = forward(step.micro_batch(i), std::move(x));
            Tensor dy = send_and_receive(std::move(y), below_);
            Tensor dx = backward(std::move(dy));
            if (i + 1 < m)
                x = send_and_receive(std::move(dx), above_);
            else
                send(std::move(dx), above_);
        }
        for (int64_t i = 0; i < warmup; ++i) {
            Tensor dy = receive(below_);
            Tensor dx = backward(std::move(dy));
            send(std::move(dx), above_);
        }
        // exercise 05.7 end
    }

private:
    Tensor forward(Context context, Tensor x) {
        auto& [its_context, saved] = in_flight_.emplace_back(std::move(context), Saved());
        return stage_.forward(std::move(x), saved, its_context);
    }
    // Runs the backward of the micro-batch that has waited longest, which frees its activations.
    Tensor backward(Tensor dy) {
        auto& [context, saved] = in_flight_.front();
        Tensor dx = stage_.backward(std::move(dy), saved, context);
        in_flight_.pop_front();
        return dx;
    }

    // To and from a rank that does not exist nothing travels.
    bool exists(int rank) const { return rank >= 0 && rank < pp_.size(); }
    void send(Tensor tensor, int to) {
        if (exists(to)) pp_.send(tensor, to);
    }
    Tensor receive(int from) {
        if (!exists(from)) return {};
        Tensor tensor = Tensor::empty(shape_, dtype_, Memory::activation);
        pp_.recv(tensor, from);
        return tensor;
    }
    Tensor send_and_receive(Tensor sent, int peer) {
        if (!exists(peer)) return {};
        Tensor received = Tensor::empty(shape_, dtype_, Memory::activation);
        pp_.send_recv({{Transfer::send, sent, peer}, {Transfer::recv, received, peer}});
        return received;
    }

    Llama& stage_;
    const Communicator& pp_;
    const int above_ = pp_.rank() - 1, below_ = pp_.rank() + 1;
    const Shape shape_;
    const DType dtype_;
    std::deque<std::pair<Context, Saved>> in_flight_;  // its tokens; what its backward needs
};

}  // namespace ultrascale::pipeline
