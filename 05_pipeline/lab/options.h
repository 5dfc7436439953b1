// The chapter's options, and which of them exclude each other.
#pragma once

#include "../2_schedules/check.h"
#include "comm/comm.h"
#include "core/device.h"
#include "lab/options/cli.h"
#include "pipeline.h"
#include "schedule_options.h"
#include "train/run.h"

namespace ultrascale::pipeline {

// Reads "F=40,B=40,W=20,hop=2", in milliseconds; a missing name keeps its default. Throws
// UserError.
inline Pretend parse_pretend(const std::string& text) {
    Pretend pretend{
        .forward = 0.040, .backward_input = 0.040, .backward_weight = 0.020, .hop = 0.002};
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(',', at), text.size());
        const std::string one = text.substr(at, end - at), name = one.substr(0, one.find('='));
        double* const value = name == "F"     ? &pretend.forward
                              : name == "B"   ? &pretend.backward_input
                              : name == "W"   ? &pretend.backward_weight
                              : name == "hop" ? &pretend.hop
                                              : nullptr;
        const std::string number = one.size() > name.size() ? one.substr(name.size() + 1) : "";
        size_t read = 0;
        double milliseconds = -1;
        try {
            milliseconds = std::stod(number, &read);
        } catch (const std::exception&) {  // not a number
        }
        const double least = name == "hop" ? 0 : 1;
        if (!value || read != number.size() || !(milliseconds >= least && milliseconds <= 1e4))
            user_error(
                "--pretend {}: give milliseconds, like F=40,B=40,W=20,hop=2; actions from 1 to "
                "10000, hop from 0",
                text);
        *value = milliseconds / 1e3;
        at = end + 1;
    }
    return pretend;
}

struct Chapter {
    int pp = 0;  // ranks of a pipeline; 0: all
    std::string schedule = "1f1b";
    ScheduleOptions sizes;
    // With a schedule from a file or the optimal one: how many micro-batches' activations a rank
    // has room for. 0: as many as the file needs, or as there are ranks.
    int in_flight = 0;
    int solver_seconds = 60;
    std::string split = "auto", pretended, simulated;
    bool post_validation = false, compare = false;

    bool from_file() const { return schedule.starts_with("file:"); }
    bool is_optimal() const { return schedule == "optimal"; }
    bool is_plain() const { return schedule == "plain"; }
    RunAs run_as() const { return {pretend(), post_validation, is_plain()}; }

    static Options defaults() {
        Options options;
        options.whole_matrices = true;
        return options;
    }

    void add_options(OptionList& options, const Options&) {
        options
            .add("--pp", pp, "Ranks of a pipeline; must divide the number of ranks. Default: all")
            .between(1, 1 << 20);
        ultrascale::pipeline::add_options(options, schedule, sizes, split, true)
            .only_if([this] { return simulated.empty() || from_file(); },
                     "--simulate shows every schedule anyway, and yours if it is file:PATH");
        options
            .add("--in-flight", in_flight,
                 "With --schedule optimal or file:PATH: of how many micro-batches a rank may hold "
                 "the activations. Default: --pp; as many as the file needs")
            .between(1, 1 << 20)
            .only_if([this] { return from_file() || is_optimal(); },
                     "the other schedules decide it themselves");
        options
            .add("--solver-seconds", solver_seconds,
                 "With --schedule optimal: how long a solver may look for a better order")
            .between(1, 1 << 20)
            .only_if([this] { return is_optimal(); }, "only --schedule optimal asks a solver")
            .show_default();
        options
            .flag("--post-validation", post_validation,
                  "Ranks update without waiting for the global norm; if it must be clipped, they "
                  "go back and repeat the update and the forwards since")
            .excludes({"--val-data", "--optimizer"});
        options.add("--pretend", pretended,
                    "Actions and messages take so many milliseconds: F=40,B=40,W=20,hop=2, each "
                    "with this default. So ranks that share a processor show their bubbles");
        options
            .flag("--compare", compare,
                  "Train with every schedule that can take these ranks and micro-batches, and "
                  "print one table")
            .excludes(training_outputs)
            .excludes({"--schedule", "--in-flight", "--solver-seconds", "--post-validation",
                       "--estimate", "--svg"});
        options
            .add("--simulate", simulated,
                 "p=64,m=512,v=4: simulate every schedule with so many ranks, micro-batches and "
                 "stages a rank, and print one table; N, F, B, W and hop too can be given")
            .excludes(training_outputs)
            .excludes({"--pp", "--chunks", "--group", "--in-flight", "--solver-seconds", "--split",
                       "--post-validation", "--pretend", "--compare", "--estimate"})
            .reads({"--json", "--html", "--schedule"}, "what it simulates stands in its value");
    }

    // Checks the options that do not depend on the model.
    void check(const Options& options) {
        const int ranks = Communicator::world().size();
        if (!simulated.empty()) options.refuse_figures("--simulate");
        if (pp == 0) pp = ranks;
        if (ranks % pp != 0)
            user_error(
                "--pp {}: {} cannot be split into pipelines of {}; pp must divide their "
                "number",
                pp, format_count(ranks, "rank"), pp);
        sequences_of_step(options, ranks / pp);  // too many would make a schedule without end
        if (post_validation && pp == 1)
            user_error("--post-validation has no effect: a single stage has the whole norm");
        if (post_validation && options.loss_chunk > 0)
            user_error(
                "--loss-chunk: with --post-validation forwards may run twice, but a loss in chunks "
                "already adds to gradients there");
        if (!pretended.empty() && device_is_gpu())
            user_error("--pretend is for ranks that share a processor; GPUs show their bubbles");
        if (is_plain()) check_plain(options);
        if (is_optimal() && (sizes.chunks != 0 || sizes.group != 0))
            user_error("--schedule optimal: a rank has one stage; leave out --chunks and --group");
        if (is_optimal() && options.estimate)
            user_error("--schedule optimal: --estimate cannot measure the times that it needs");
    }
    // The plain loop has no actions, so options that need actions are refused.
    void check_plain(const Options& options) const {
        const auto refuse = [](const char* option, const char* why) {
            user_error("{}: --schedule plain {}; use 1f1b, the same order as a schedule", option,
                       why);
        };
        if (sizes.chunks != 0) refuse("--chunks", "has one stage a rank");
        if (sizes.group != 0) refuse("--group", "has no groups of micro-batches");
        if (post_validation) refuse("--post-validation", "cannot repeat a step's first forwards");
        if (!pretended.empty()) refuse("--pretend", "takes the time that it takes");
        if (!options.svg.empty()) refuse("--svg", "does not record when its actions ran");
    }
    Pretend pretend() const { return pretended.empty() ? Pretend{} : parse_pretend(pretended); }

    // The schedule for this many micro-batches, unless it is the optimal one (optimal_run.h).
    // Throws UserError if there is none, or if the file's does not fit.
    Schedule make(int micro_batches) const {
        if (is_plain()) return plain_schedule(pp, micro_batches);
        const Schedule made = make_schedule(schedule, pp, micro_batches, sizes);
        check_schedule(made, in_flight > 0 ? in_flight : std::numeric_limits<double>::infinity());
        return apart(made);
    }
};

}  // namespace ultrascale::pipeline
