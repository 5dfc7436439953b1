// Two stages of one model as a pipeline runs them: who does what when, and what they send each
// other. In 1F1B, and in zero-bubble order, which takes a backward's two halves apart:
//
//                                                        gradients
//     stage 0   F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3      B: of what came in
//     stage 1   F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3      W: of the weights
#pragma once

#include "lab/predict/prediction.h"
#include "train/run.h"

namespace ultrascale::pipeline {

inline constexpr int64_t T = 16, B = 1, A = 4, steps = 4;
inline const LlamaConfig config{.layers = 4,
                                .hidden = 32,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 8,
                                .ffn = 48,
                                .vocab = 256,
                                .tied = true};

// D: B and W together.
struct Action {
    char kind;
    int64_t m;
};
inline std::vector<Action> schedule(bool zero_bubble, int stage) {
    std::vector<Action> actions;
    const int64_t ahead = 1 - stage;
    for (int64_t m = 0; m < ahead; ++m) actions.push_back({'F', m});
    for (int64_t m = 0; m < A; ++m) {
        if (m + ahead < A) actions.push_back({'F', m + ahead});
        actions.push_back({zero_bubble ? 'B' : 'D', m});
        if (zero_bubble && m > 0) actions.push_back({'W', m - 1});
    }
    if (zero_bubble) actions.push_back({'W', A - 1});
    return actions;
}

// Activations go forward and gradients back, each direction in a group and on a stream of its own:
// a rank that waits for one does not hold up the other.
class Stages {
public:
    explicit Stages(const Communicator& pp)
        : rank_(pp.rank()),
          down_(pp.split(0, pp.rank(), "forward")),
          up_(pp.split(0, pp.rank(), "backward")) {}

    void run(Llama& model, Step& step, Hooks* hooks, const std::vector<Action>& actions) {
        std::vector<Saved> saved(A);
        std::vector<Context> contexts(A);
        step.call_hooks({hooks});
        for (const auto& [kind, m] : actions) {
            if (kind == 'F') contexts[size_t(m)] = step.micro_batch(m);
            Context& context = contexts[size_t(m)];
            Saved& kept = saved[size_t(m)];
            if (kind == 'F') {
                const Tensor y = model.forward(
                    rank_ == 0 ? Tensor() : receive(down_, 0, stream_down_), kept, context);
                if (rank_ == 0) sent_.push_back(down_.send(y, 1, stream_down_));
            } else if (kind == 'W') {
                model.backward_weight(kept, context);
            } else {
                const WeightGradient when =
                    kind == 'D' ? WeightGradient::now : WeightGradient::later;
                const Tensor dy = rank_ == 1 ? Tensor() : receive(up_, 1, stream_up_);
                const Tensor dx = model.backward(dy, kept, context, when);
                if (rank_ == 1) sent_.push_back(up_.send(dx, 0, stream_up_));
            }
        }
        sent_.clear();  // waits
    }
    void add_to(PredictedCommunication& step_communication) const {
        const int64_t bytes = A * B * T * config.hidden * 4;
        step_communication.add(down_, Collective::send_recv,
                               {A, rank_ == 0 ? bytes : 0, rank_ == 0 ? double(bytes) : 0});
        step_communication.add(up_, Collective::send_recv,
                               {A, rank_ == 1 ? bytes : 0, rank_ == 1 ? double(bytes) : 0});
    }

private:
    static Tensor receive(const Communicator& group, int from, Stream& stream) {
        Tensor x = Tensor::empty({B, T, config.hidden}, DType::fp32, Memory::activation);
        group.recv(x, from, stream).wait();
        return x;
    }
    int rank_;
    Communicator down_, up_;
    Stream stream_down_{"forward"}, stream_up_{"backward"};
    std::vector<Work> sent_;
};

}  // namespace ultrascale::pipeline
