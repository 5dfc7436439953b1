// All schedules by name (--schedule), and the sizes that each of them accepts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "afab.h"
#include "breadth_first.h"
#include "core/error.h"
#include "core/memory.h"
#include "dual_pipe_v.h"
#include "interleaved.h"
#include "naive.h"
#include "one_f_one_b_overlap.h"
#include "schedule_file.h"
#include "v_half.h"
#include "zb_h2.h"
#include "zbv.h"

namespace ultrascale::pipeline {

struct ScheduleOptions {
    int chunks = 0;  // --chunks: a rank's stages, if the schedule leaves the choice; 0: 2
    int group = 0;   // --group: interleaved's micro-batches a group; 0: p
};

// A schedule's properties, known before it is made.
struct ScheduleKind {
    std::string_view name;
    bool takes_chunks = false, takes_group = false;
    // Throws UserError, in one line that begins with --schedule, if the schedule cannot run this
    // many micro-batches on this many ranks. Options are complete: none is 0.
    void (*check)(int ranks, int micro_batches, const ScheduleOptions&);
    Schedule (*make)(int ranks, int micro_batches, const ScheduleOptions&);
};

namespace schedules {

inline void takes_all(int, int, const ScheduleOptions&) {}

inline void check_chunks(std::string_view name, const ScheduleOptions& options) {
    if (options.chunks < 2 || options.chunks > most_chunks)
        user_error("--schedule {}: --chunks {} is not between 2 and {}; {}", name, options.chunks,
                   most_chunks,
                   options.chunks < 2 ? "with one stage a rank it would be 1f1b or afab"
                                      : "a rank's stages are named a to z");
}

inline void check_interleaved(int p, int m, const ScheduleOptions& options) {
    check_chunks("interleaved", options);
    const int n = options.group;
    if (n < p)
        user_error("--schedule interleaved: --group {} must be at least {}, the number of ranks", n,
                   p);
    if (m < p)
        user_error(
            "--schedule interleaved: {} ranks would wait in every round with only {}; use {}, or "
            "1f1b",
            p, format_count(m, "micro-batch"), n);
    if (n > m)
        user_error(
            "--schedule interleaved: --group {} must be at most {}, the number of micro-batches", n,
            m);
    if (m % n != 0)
        user_error(
            "--schedule interleaved: {} micro-batches are not whole groups of {}; use {} or "
            "{} of them, or another --group",
            m, n, m / n * n, (m / n + 1) * n);
}

inline void check_dual_pipe(int p, int m, const ScheduleOptions&) {
    if (p % 2 != 0)
        user_error(
            "--schedule dualpipe: with {} there is no middle where the two directions meet; use "
            "an even number, or dualpipev",
            format_count(p, "rank"));
    if (m % 2 != 0)
        user_error(
            "--schedule dualpipe: half of the micro-batches enter at either end; {} cannot "
            "be halved, use {}",
            m, std::max(m + 1, 2 * p));
    if (m < 2 * p)
        user_error("--schedule dualpipe: {} cannot fill {} from both ends; use at least {}, or zbv",
                   format_count(m, "micro-batch"), format_count(p, "rank"), 2 * p);
}

inline void check_dual_pipe_v(int p, int m, const ScheduleOptions&) {
    if (m < 2 * p)
        user_error(
            "--schedule dualpipev: {} cannot fill the {} chunks of {}; use at least {}, or zbv",
            format_count(m, "micro-batch"), 2 * p, format_count(p, "rank"), 2 * p);
}

// In the order in which the chapter introduces them.
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
    {.name = "1f1b-overlap",
     .check = takes_all,
     .make = [](int p, int m, const ScheduleOptions&) { return one_f_one_b_overlap(p, m); }},
    {.name = "interleaved",
     .takes_chunks = true,
     .takes_group = true,
     .check = check_interleaved,
     .make = [](int p, int m,
                const ScheduleOptions& o) { return interleaved(p, m, o.chunks, o.group); }},
    {.name = "breadth-first",
     .takes_chunks = true,
     .check = [](int, int, const ScheduleOptions& o) { check_chunks("breadth-first", o); },
     .make = [](int p, int m, const ScheduleOptions& o) { return breadth_first(p, m, o.chunks); }},
    {.name = "zb-h1",
     .check = takes_all,
     .make = [](int p, int m, const ScheduleOptions&) { return zb_h1(p, m); }},
    {.name = "zb-h2",
     .check = takes_all,
     .make = [](int p, int m, const ScheduleOptions&) { return zb_h2(p, m); }},
    {.name = "zbv",
     .check = takes_all,
     .make = [](int p, int m, const ScheduleOptions&) { return zbv(p, m); }},
    {.name = "v-half",
     .check = takes_all,
     .make = [](int p, int m, const ScheduleOptions&) { return v_half(p, m); }},
    {.name = "dualpipe",
     .check = check_dual_pipe,
     .make = [](int p, int m, const ScheduleOptions&) { return dual_pipe(p, m); }},
    {.name = "dualpipev",
     .check = check_dual_pipe_v,
     .make = [](int p, int m, const ScheduleOptions&) { return dual_pipe_v(p, m); }},
};

}  // namespace schedules

// The names that --schedule accepts, besides optimal and file:PATH.
inline std::vector<std::string> schedule_names() {
    std::vector<std::string> names;
    for (const ScheduleKind& kind : schedules::all) names.emplace_back(kind.name);
    return names;
}

// Throws UserError if there is no such schedule.
inline const ScheduleKind& schedule_kind(std::string_view name) {
    if (name == "plain")
        user_error(
            "--schedule plain: a loop that 05_pipeline runs for training alone; use 1f1b, the same "
            "order as a schedule");
    std::string known;
    for (const ScheduleKind& kind : schedules::all) {
        if (kind.name == name) return kind;
        known += std::string(known.empty() ? "" : ", ") + std::string(kind.name);
    }
    user_error(
        "--schedule {}: there is no such schedule; there are {}, plain, optimal and file:PATH",
        name, known);
}

// Reads a student's schedule (file:PATH), which must fit these sizes.
inline Schedule schedule_of_file(const std::string& path, int ranks, int micro_batches) {
    if (path.empty())
        user_error(
            "--schedule file: it names no file; write file:PATH, a file with each rank's actions");
    Schedule schedule = read_schedule(path);
    if (schedule.ranks() != ranks)
        user_error("--schedule file:{}: it is for {}, not for {}", path,
                   format_count(schedule.ranks(), "rank"), ranks);
    if (schedule.micro_batches != micro_batches)
        user_error("--schedule file:{}: it has {}, but a step has {}; use --grad-accum {}", path,
                   format_count(schedule.micro_batches, "micro-batch"), micro_batches,
                   schedule.micro_batches);
    return schedule;
}

// With more micro-batches a step would be a list of actions that takes seconds to make.
inline constexpr int most_micro_batches = 100'000;

// The schedule that --schedule names (all but optimal, which needs times: optimal.h). Throws
// UserError, in one line, if it does not exist for these sizes.
inline Schedule make_schedule(std::string_view name, int ranks, int micro_batches,
                              ScheduleOptions options = {}) {
    if (micro_batches > most_micro_batches)
        user_error(
            "--grad-accum {}: a schedule has at most {} micro-batches; use a larger --micro-batch",
            micro_batches, most_micro_batches);
    constexpr std::string_view file = "file:";
    if (name.starts_with(file))
        return schedule_of_file(std::string(name.substr(file.size())), ranks, micro_batches);
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

}  // namespace ultrascale::pipeline
