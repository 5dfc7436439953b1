// One forward, one backward (1F1B) as a loop, in which each send and each receive stands where it
// happens. The model's layers are cut into as many stages as there are ranks, and rank r has stage
// r: it gets activations x from rank r-1 and sends y to rank r+1; it gets y's gradient dy from rank
// r+1, and sends that of x, dx, to rank r-1.
//
//     rank 0   F0 F1 F2 F3          D0 F4 D1 F5 D2    D3    D4 D5       F: forward
//     rank 1      F0 F1 F2       D0 F3 D1 F4 D2 F5 D3    D4 D5          D: backward
//     rank 2         F0 F1    D0 F2 D1 F3 D2 F4 D3 F5 D4 D5             0 to 5: micro-batches
//     rank 3            F0 D0 F1 D1 F2 D2 F3 D3 F4 D4 F5 D5
//              warm up   | a forward, a backward | the rest
//
// A rank starts just enough micro-batches to keep those below it busy, then does the backward of
// one before it starts another. So it holds the activations of at most min(p-r, m) of its m
// micro-batches, not of all. (p: ranks.)
//
// Calls block. In the middle part, rank r wants to send y down when rank r+1 wants to send dx up:
// each would wait for the other to receive. So both do it in one call, which sends and receives.
//
// What this costs: every border between two ranks is crossed by m activations and m gradients, of
// b s h numbers each (sequences, tokens, hidden size), and nobody computes while it waits for them.
// The later files say the same order as data (2_schedules/one_f_one_b.h), so that one executor can
// run any order, and send while it computes (4_executor).
// Narayanan et al., "PipeDream", 2019 (arXiv 1806.03377); "PipeDream-Flush", 2021 (2006.09503).
#pragma once

#include <algorithm>
#include <deque>

#include "comm/comm.h"
#include "model/llama.h"
#include "train/step.h"

namespace ultrascale::pipeline {

class Plain1F1B {
public:
    // `stage`: this rank's. `shape`, `dtype`: of a message, (b, s, h). The first two must live as
    // long.
    Plain1F1B(Llama& stage, const Communicator& pp, Shape shape, DType dtype)
        : stage_(stage),
          pp_(pp),
          above_(pp.rank() - 1),
          below_(pp.rank() + 1),
          shape_(std::move(shape)),
          dtype_(dtype) {}

    // Forward and backward of a step's micro-batches. Gradients and step.loss then hold what this
    // rank's stage contributes.
    void run(Step& step, Hooks* hooks = nullptr) {
        step.call_hooks({hooks});
        // exercise 05.7 begin: warm up; a forward, a backward; the rest
        const int64_t m = step.accumulated,
                      warmup = std::min<int64_t>(pp_.size() - 1 - pp_.rank(), m);
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
    struct InFlight {
        Context context;
        Saved saved;  // the activations: what backward needs
    };
    Tensor forward(Context context, Tensor x) {
        InFlight& newest = in_flight_.emplace_back(std::move(context));
        return stage_.forward(std::move(x), newest.saved, newest.context);
    }
    // Of the micro-batch that has waited longest.
    Tensor backward(Tensor dy) {
        InFlight& oldest = in_flight_.front();
        Tensor dx = stage_.backward(std::move(dy), oldest.saved, oldest.context);
        in_flight_.pop_front();
        return dx;
    }

    // The first rank has nobody above it, the last one nobody below.
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
    int above_, below_;
    Shape shape_;
    DType dtype_;
    std::deque<InFlight> in_flight_;
};

}  // namespace ultrascale::pipeline
