// All schedules by name (--schedule), and what each of them can take.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "afab.h"
#include "core/error.h"
#include "naive.h"
#include "one_f_one_b.h"

namespace ultrascale {

struct ScheduleOptions {
    int chunks = 0;  // --chunks: a rank's stages, where the schedule leaves the choice; 0: 2
    int group = 0;   // --group: interleaved's micro-batches a group; 0: p
};

// What there is to know about a schedule before it is made.
struct ScheduleKind {
    std::string_view name;
    bool takes_chunks = false, takes_group = false;
    // UserError, in one line that begins with --schedule, where the schedule cannot run so many
    // micro-batches on so many ranks. Options are complete: no 0.
    void (*check)(int ranks, int micro_batches, const ScheduleOptions&);
    Schedule (*make)(int ranks, int micro_batches, const ScheduleOptions&);
};

namespace schedules {

inline void takes_all(int, int, const ScheduleOptions&) {}

inline constexpr ScheduleKind all[] = {
    {.name = "naive",
     .check = takes_all,
     .make = [](int p, int m, const ScheduleOptions&) { return naive(p, m); }},
    {.name = "afab",
     .check = takes_all,
     .make = [](int p, int m, const ScheduleOptions&) { return afab(p, m); }},
    {.name = "1f1b",
     .check = takes_all,
     .make = [](int p, int m, const ScheduleOptions&) { return one_f_one_b(p, m); }},
};

}  // namespace schedules

// The names that --schedule takes, besides optimal and file:PATH.
inline std::vector<std::string> schedule_names() {
    std::vector<std::string> names;
    for (const ScheduleKind& kind : schedules::all) names.emplace_back(kind.name);
    return names;
}

// UserError if there is no such schedule.
inline const ScheduleKind& schedule_kind(std::string_view name) {
    std::string known;
    for (const ScheduleKind& kind : schedules::all) {
        if (kind.name == name) return kind;
        known += std::string(known.empty() ? "" : ", ") + std::string(kind.name);
    }
    user_error("--schedule {}: there is no such schedule; there are {}", name, known);
}

// A schedule that some file here generates. UserError, in one line, if it does not exist for these
// sizes.
inline Schedule make_schedule(std::string_view name, int ranks, int micro_batches,
                              ScheduleOptions options = {}) {
    const ScheduleKind& kind = schedule_kind(name);
    check(ranks >= 1 && micro_batches >= 1, "a schedule needs ranks and micro-batches");
    if (options.chunks != 0 && !kind.takes_chunks)
        user_error(
            "--chunks has no effect: --schedule {} decides itself how many stages a rank has",
            name);
    if (options.group != 0 && !kind.takes_group)
        user_error("--group has no effect: --schedule {} has no groups of micro-batches", name);
    if (options.chunks == 0) options.chunks = 2;
    if (options.group == 0) options.group = ranks;
    kind.check(ranks, micro_batches, options);
    return kind.make(ranks, micro_batches, options);
}

}  // namespace ultrascale
