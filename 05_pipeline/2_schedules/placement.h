// Which stages a rank holds: three ways in which schedules place them.
//
//     p = 4      looped, v = 2      V            two copies
//     rank 0     0 4                0 7          0 3'
//     rank 1     1 5                1 6          1 2'
//     rank 2     2 6                2 5          2 1'
//     rank 3     3 7                3 4          3 0'
#pragma once

#include "schedule.h"

namespace ultrascale::pipeline {

using Placement = std::vector<std::vector<Chunk>>;

// Stage s is on rank s mod p: a micro-batch goes round v times.
inline Placement looped(int ranks, int chunks) {
    Placement placement(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank)
        for (int c = 0; c < chunks; ++c) placement[size_t(rank)].push_back({c * ranks + rank});
    return placement;
}

// A micro-batch goes down the ranks and comes back: the last rank hands its output to itself, and
// rank 0 has the first stage and the last.
inline Placement v_shaped(int ranks) {
    Placement placement(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank)
        placement[size_t(rank)] = {{rank}, {2 * ranks - 1 - rank}};
    return placement;
}

// Two copies of the whole model, one in each direction.
inline Placement both_directions(int ranks) {
    Placement placement(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank)
        placement[size_t(rank)] = {{.stage = rank, .copy = 0},
                                   {.stage = ranks - 1 - rank, .copy = 1}};
    return placement;
}

inline Schedule empty_schedule(std::string name, int micro_batches, Placement placement) {
    int stages = 0;
    for (const auto& rank_chunks : placement)
        for (const Chunk& chunk : rank_chunks)
            stages = chunk.stage < stages ? stages : chunk.stage + 1;
    Schedule schedule{.name = std::move(name),
                      .micro_batches = micro_batches,
                      .stages = stages,
                      .chunks = std::move(placement)};
    schedule.actions.resize(schedule.chunks.size());
    return schedule;
}

}  // namespace ultrascale::pipeline
