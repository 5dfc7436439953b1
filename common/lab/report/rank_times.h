// Private to the report: how long the phases of a step lasted on each rank, from the recorded spans
// (core/trace.h), beside the median of the rank's group: the ranks that do the same.
#pragma once

#include "report_tables.h"

namespace ultrascale {

// One step of this rank: its number, when it ended, and the bytes that the rank then held.
struct RankStep {
    int64_t step;
    double end;
    int64_t held_bytes;
};

struct RankTimes {
    std::vector<Json> lines;  // a rank and step: {"step", "rank", "held_bytes", "ms": {phase: ms}}
    // An array of each rank's {phase: {"ms", "group_ms"}}: the median over the steps after the
    // first `warmup`, and the median of these over the ranks of the group.
    Json by_rank;
};

// All ranks call it; the result is on rank 0. `group`: ranks that give the same number do the same.
// Besides the phases there are "operations", the time in which the rank computed; "blocked", in
// which a call that communicates held up its computing; the whole "step"; and "idle", the rest of
// it, in which it waited for a message or its host did something else.
RankTimes rank_times(const std::vector<RankStep>& steps, int64_t warmup, int64_t group);
// Prints the phases with the rank that is farthest above its group's median.
void print_rank_times(const Json& by_rank);

}  // namespace ultrascale
