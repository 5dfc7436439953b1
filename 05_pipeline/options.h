// The chapter's options, and which of them exclude each other.
#pragma once

#include "comm/comm.h"
#include "pretend.h"
#include "report/cli.h"
#include "schedules.h"
#include "stages.h"

namespace ultrascale {

struct PipelineOptions {
    int pp = 0;  // ranks of a pipeline; 0: all
    std::string schedule = "1f1b";
    ScheduleOptions sizes;
    std::string split = "auto";
};

struct Chapter {
    PipelineOptions pipeline;
    std::string pretend_text;
    bool compare = false;

    void add_options(OptionList& options, const Options&) {
        options
            .add("--pp", pipeline.pp,
                 "Ranks of a pipeline; must divide the number of ranks. Default: all")
            .between(1, 1 << 20);
        std::string names;
        for (const std::string& name : schedule_names())
            names += (names.empty() ? "" : ", ") + name;
        options.add("--schedule", pipeline.schedule, "Who does what when: " + names).show_default();
        options
            .add(
                "--chunks", pipeline.sizes.chunks,
                "With --schedule interleaved or breadth-first: stages that each rank has. Default: "
                "2")
            .between(1, 1 << 20);
        options
            .add("--group", pipeline.sizes.group,
                 "With --schedule interleaved: micro-batches that go through a rank's stage before "
                 "its next stage begins. Default: --pp")
            .between(1, 1 << 20);
        options
            .add("--split", pipeline.split,
                 "How many layers each stage has: auto, so that stages cost the same, or numbers "
                 "like 6,5,5")
            .show_default();
        options.add("--pretend", pretend_text,
                    "Actions and messages take so many milliseconds, like F=40,B=40,W=20,hop=2 "
                    "(which a missing one defaults to), so that ranks that share a processor show "
                    "their bubbles");
        options
            .flag(
                "--compare", compare,
                "Train with every schedule that can take these ranks and micro-batches, and print "
                "one table")
            .excludes(training_outputs)
            .excludes({"--schedule", "--estimate", "--svg"});
    }

    // Checks what does not depend on the model.
    void check(const Options&) {
        const int ranks = Communicator::world().size();
        if (pipeline.pp == 0) pipeline.pp = ranks;
        if (ranks % pipeline.pp != 0)
            user_error(
                "--pp {}: {} ranks cannot be split into pipelines of {}; pp must divide their "
                "number",
                pipeline.pp, ranks, pipeline.pp);
        if (!pretend_text.empty() && device_is_gpu())
            user_error("--pretend is for ranks that share a processor; GPUs show their bubbles");
    }
    Pretend pretend() const {
        return pretend_text.empty() ? Pretend{} : parse_pretend(pretend_text);
    }
};

}  // namespace ultrascale
