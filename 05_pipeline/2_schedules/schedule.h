// A pipeline's schedule as data: for each rank, the list of its actions in order. The plain loop
// (1_plain_1f1b.h) performs one such list. A generator (one_f_one_b.h, zbv.h, ...) writes the list,
// check.h proves that it can run, simulate.h predicts how long it takes, and executor.h runs it.
//
//     stages 0 1 2 3: consecutive layers of the model, each on one rank
//
//     rank 0   F0 F1 F2 F3 D0 ...      F: forward of a micro-batch
//     rank 1      F0 F1 F2 D0 F3 ...   D: its whole backward, or taken apart:
//     rank 2         F0 F1 D0 F2 ...   B: backward of inputs, which the stage before waits for
//     rank 3            F0 D0 F1 ...   W: backward of weights, which nobody waits for
//
// A rank may hold several stages, its chunks: a, b, ... in this notation ("F3b"). A plus sign joins
// two actions that run together ("F5a+D2b").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ultrascale::pipeline {

enum class ActionKind : char {
    forward = 'F',
    backward = 'D',
    backward_input = 'B',
    backward_weight = 'W'
};
// Whether it computes the gradient that the stage before waits for.
inline bool sends_back(ActionKind kind) {
    return kind == ActionKind::backward || kind == ActionKind::backward_input;
}
// Whether it is the last to use what forward saved.
inline bool frees(ActionKind kind) {
    return kind == ActionKind::backward || kind == ActionKind::backward_weight;
}

struct Action {
    ActionKind kind;
    int micro_batch;
    int chunk = 0;  // the index among its rank's chunks
    // Runs together with the next action, which is independent of it: they take turns, so that one
    // computes while the other communicates (together.h).
    bool with_next = false;
    bool operator==(const Action&) const = default;
};

// Chunks have names from a to z.
inline constexpr int most_chunks = 26;

// A stage of a copy of the model. Only DualPipe has two copies, whose micro-batches differ.
struct Chunk {
    int stage, copy = 0;
    bool operator==(const Chunk&) const = default;
};

struct StageLocation {
    int rank, chunk;
    bool operator==(const StageLocation&) const = default;
};

struct Schedule {
    std::string name;
    int micro_batches;                         // of a step; of both copies together
    int stages;                                // of the whole model
    std::vector<std::vector<Chunk>> chunks;    // of each rank
    std::vector<std::vector<Action>> actions;  // of each rank

    int ranks() const { return int(chunks.size()); }
    int copies() const {
        size_t held = 0;
        for (const auto& rank_chunks : chunks) held += rank_chunks.size();
        return int(held) / stages;
    }
    // The copy that a micro-batch passes: the first half belongs to the first copy.
    int copy_of(int micro_batch) const {
        return int(int64_t(micro_batch) * copies() / micro_batches);
    }
    // The place of each stage of each copy: locations()[copy][stage].
    std::vector<std::vector<StageLocation>> locations() const {
        std::vector<std::vector<StageLocation>> found(
            size_t(copies()), std::vector<StageLocation>(size_t(stages), {-1, -1}));
        for (int rank = 0; rank < ranks(); ++rank)
            for (int c = 0; c < int(chunks[size_t(rank)].size()); ++c) {
                const Chunk& chunk = chunks[size_t(rank)][size_t(c)];
                found.at(size_t(chunk.copy)).at(size_t(chunk.stage)) = {rank, c};
            }
        return found;
    }
};

// The same schedule without pairs: their actions run one after the other.
inline Schedule apart(Schedule schedule) {
    for (auto& actions : schedule.actions)
        for (Action& action : actions) action.with_next = false;
    return schedule;
}

// "F3"; "F3b" if a rank has several chunks.
inline std::string to_string(const Action& action, bool several_chunks) {
    std::string words = char(action.kind) + std::to_string(action.micro_batch);
    if (several_chunks) words += char('a' + action.chunk);
    return words;
}
inline std::string to_string(const Schedule& schedule, int rank, const Action& action) {
    return to_string(action, schedule.chunks[size_t(rank)].size() > 1);
}
// All actions of a rank: "F0 F1 D0 D1".
inline std::string to_string(const Schedule& schedule, int rank) {
    std::string line;
    bool together = false;
    for (const Action& action : schedule.actions[size_t(rank)]) {
        if (!line.empty()) line += together ? '+' : ' ';
        line += to_string(schedule, rank, action);
        together = action.with_next;
    }
    return line;
}

}  // namespace ultrascale::pipeline
