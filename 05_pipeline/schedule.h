// A pipeline's schedule as data: for each rank the list of what it does, in order. A generator
// (one_f_one_b.h, zbv.h, ...) writes it, check.h proves that it can run, simulate.h predicts how
// long it takes, executor.h runs it.
//
//     stages 0 1 2 3: consecutive layers of the model, each on one rank
//
//     rank 0   F0 F1 F2 F3 D0 ...      F: forward of a micro-batch
//     rank 1      F0 F1 F2 D0 F3 ...   D: its whole backward, or taken apart:
//     rank 2         F0 F1 D0 F2 ...   B: backward of inputs, which the stage before waits for
//     rank 3            F0 D0 F1 ...   W: backward of weights, which nobody waits for
//
// A rank may hold several stages, its chunks: a, b, ... in this notation ("F3b").
#pragma once

#include <string>
#include <vector>

namespace ultrascale {

enum class ActionKind : char {
    forward = 'F',
    backward = 'D',
    backward_input = 'B',
    backward_weight = 'W'
};

struct Action {
    ActionKind kind;
    int micro_batch;
    int chunk = 0;  // which of its rank's chunks
    // Runs together with the next action, one's segments between the other's (DualPipe's overlap of
    // a forward with a backward).
    bool with_next = false;
    bool operator==(const Action&) const = default;
};

// A stage of a copy of the model. Only DualPipe has two copies, whose micro-batches differ.
struct Chunk {
    int stage, copy = 0;
    bool operator==(const Chunk&) const = default;
};

struct Schedule {
    std::string name;
    int micro_batches;  // of a step; of both copies together
    int stages;         // of the whole model
    std::vector<std::vector<Chunk>> chunks;    // of each rank
    std::vector<std::vector<Action>> actions;  // of each rank
    int ranks() const { return int(chunks.size()); }
};

}  // namespace ultrascale
