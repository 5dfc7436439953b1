// The options that choose a schedule.
#pragma once

#include "../2_schedules/schedules.h"
#include "lab/options/option_list.h"

namespace ultrascale::pipeline {

// Adds the options, and returns --schedule. plain: whether the plain loop can be chosen.
inline OneOption add_options(OptionList& options, std::string& schedule, ScheduleOptions& sizes,
                             std::string& split, bool plain = false) {
    std::string names = plain ? "plain, 1f1b as a loop without a schedule, " : "";
    for (const std::string& name : schedule_names()) names += name + ", ";
    const OneOption schedule_option =
        options
            .add("--schedule", schedule,
                 "Who does what when: " + names +
                     "file:PATH, a file with each rank's actions, or optimal, the best order for "
                     "the stages' measured times")
            .show_default();
    options
        .add("--chunks", sizes.chunks,
             "With --schedule interleaved or breadth-first: stages that each rank has. "
             "Default: 2")
        .between(1, 1 << 20);
    options
        .add("--group", sizes.group,
             "With --schedule interleaved: micro-batches that pass one of a rank's stages "
             "before its next one begins. Default: --pp")
        .between(1, 1 << 20);
    options
        .add("--split", split,
             "How many layers each stage has: auto, so that stages cost the same, or numbers "
             "like 6,5,5")
        .show_default();
    return schedule_option;
}

}  // namespace ultrascale::pipeline
