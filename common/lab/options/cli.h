// The options that all chapters share, and how every program starts and ends.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include "model/llama.h"
#include "model/optimizer.h"
#include "option_list.h"

namespace ultrascale {

struct Options {
    std::string model = "nano", load, save, data, val_data;
    int64_t layers = 0;         // 0: the model's own depth
    bool with_experts = false;  // the program trains models with experts
    bool whole_matrices = false;  // a rank's matrices are whole, so Muon can update them
    int64_t steps = 40, seq = 0, micro_batch = 8, grad_accum = 1;
    int64_t val_every = 100;  // steps
    int64_t save_every = 0;   // steps; 0: only at the end
    bool resume = false;      // from `save`, if there is something to resume
    int64_t until_step = 0;   // of the whole run, resumed or not; 0: `steps` of this program
    bool save_async = false;
    OptimizerOptions optimizer;
    uint64_t seed = 1;
    bool shuffle = false;
    int64_t document_token = -1, ignore_token = -1;  // -1: none (data.h: DataOptions)
    int64_t window = 0, prefix = 0;                  // 0: the model's own; none
    DType dtype = DType::fp32;
    bool fp32_grads = false;
    Recompute recompute = Recompute::none;
    AttentionKind attention = AttentionKind::flash;
    int64_t loss_chunk = 0;    // tokens; 0: the whole micro-batch
    double dropout = 0;        // probability
    bool keep_masks = false;   // ModelOptions
    double hang_seconds = 60;  // a longer wait in a step ends the job; 0: none does
    int node_size = 0;      // ranks of a node, simulated or a machine; 0: one node, or uneven ones
    double inter_gbps = 0;  // between simulated nodes, Gbit/s; 0: nodes are not simulated
    std::optional<bool> verify;  // no value: on for models under 5 M parameters
    bool estimate = false;       // predict only
    bool explain = false, profile = false, full_report = false, checksums = false;
    int64_t log_every = 1;  // steps
    int64_t sample = 0;     // tokens to generate at the end
    double temperature = 0.8;
    std::string prompt = "The ";
    std::string json, trace, html;
    std::string svg;                       // a directory
    double peak_tflops = 0;                // 0: the device's own
    double device_memory_gib = 0;          // 0: the device's own
    bool copy_engines = true;              // comm.h: use_copy_engines
    JsonFields values;                     // all options' values, including the chapter's own
    OptionTexts training_texts;            // the options that a checkpoint records
    bool own_head = false;                 // has_own_head() of --load
    std::vector<std::string> notes;        // what the user should know about --load and --model
    std::vector<std::string> given_names;  // of the options on the command line
    bool given(const std::string& name) const {
        return std::ranges::find(given_names, name) != given_names.end();
    }

    // --data was not given, and `data` is the file on which the run in --load was trained.
    bool data_of_run = false;
    // The data's path: --data, or the text that comes with the project.
    std::string data_path() const;
    std::string data_name() const;  // in a checkpoint (checkpoint.h: TrainingState)
    const std::string& model_name() const { return load.empty() ? model : load; }  // in the report
    DType grad_dtype() const { return fp32_grads ? DType::fp32 : dtype; }
    // Throws UserError if only some layers recompute, in a program that has no formulas for it.
    void refuse_recompute_by_layer() const;
    // Throws UserError if --json or --html is given in a mode of the program that has no figures.
    void refuse_figures(const std::string& mode) const;
    // The model's numbers from --model (a preset or a directory), --load, --layers, --window and
    // --prefix.
    LlamaConfig config() const;
};

// The shared options for the training's output besides its report, and for its end. Modes that do
// not train (--compare, --demo, --estimate) exclude them.
inline const std::vector<std::string> training_outputs{
    "--save",      "--trace",  "--val-data",   "--sample", "--explain",      "--profile",
    "--log-every", "--report", "--until-step", "--resume", "--hang-seconds", "--checksums"};
// The options that decide how a run proceeds, not what a rank holds and sends in a step.
inline const std::vector<std::string> training_course{
    "--save-every",   "--save-async", "--val-every",   "--prompt",      "--temperature", "--data",
    "--steps",        "--lr-steps",   "--warmup",      "--seed",        "--shuffle",     "--verify",
    "--ignore-token", "--svg",        "--peak-tflops", "--copy-engines"};
inline std::vector<std::string> both(std::vector<std::string> names,
                                     const std::vector<std::string>& more) {
    names.insert(names.end(), more.begin(), more.end());
    return names;
}

// All ranks call it. Throws UserError on all ranks if `checks` does on any: the first rank's error.
void check_on_all_ranks(const std::function<void()>& checks);

// Reads the command line into the options that `add_options` adds. Then `resume` may take over the
// options of an earlier run, and `check_values` checks them; both may throw UserError. With --help
// it prints the help text and ends the program. An unknown option or a value out of range is a
// UserError. All ranks call it, and all throw the same error if any of them finds one, or if the
// ranks run different programs or were given different options.
void parse_command_line(
    int argc, char** argv, const std::string& name, const std::string& description,
    const std::function<void(OptionList&)>& add_options,
    const std::function<void(const OptionList&)>& check_values = [](const OptionList&) {},
    const std::function<void(OptionList&)>& resume = [](OptionList&) {});

void add_shared_options(OptionList& options, Options& values);
// --cuda-graph, an option of the chapters whose micro-batches can be recorded
// (train/recordings.h). If these communicate, the `shared` options must allow it.
OneOption add_cuda_graph(OptionList& options, bool& on);
OneOption add_cuda_graph(OptionList& options, bool& on, const Options& shared);
// --memory-budget GIB (lab/predict/budget.h), an option of the chapters that can predict it.
OneOption add_memory_budget(OptionList& options, double& gib);
// parse_command_line() with the shared options; an option that is not given has its value in
// `defaults`. `add_own` adds the chapter's own options, whose rules may depend on the shared ones.
// An output file that cannot be written is a UserError, too.
Options parse_options(int argc, char** argv, const std::string& name,
                      const std::string& description,
                      const std::function<void(OptionList&, const Options&)>& add_own,
                      const Options& defaults = {});

// Throws UserError unless --node-size divides the running ranks into nodes.
void check_nodes(const Options& options);

// Runs `program` and turns its end into an exit code (error.h: Exit): 0, 1 (it returned false:
// verification failed), a UserError's (rank 0 prints it in one line, every rank ends), 4 (a
// PeerError), 3 (a bug). First sets the number of threads to cores / ranks on this machine. If only
// some ranks throw a UserError, each of them prints its own after 5 s and ends the job. Any other
// exception ends the job at once.
int run_program(const std::function<bool()>& program);
// A chapter's main(): runs `run` as that program, with the shared options and the chapter's own,
// which chapter.add_options() describes. A chapter may have defaults() of its own for the shared
// options. It may also say that a mode imagines_ranks(): --node-size then applies to the imagined
// ones.
template <class Chapter>
int run_chapter(int argc, char** argv, const std::string& name, const std::string& description,
                bool (*run)(const Options&, Chapter&)) {
    return run_program([&] {
        Chapter chapter;
        Options defaults;
        if constexpr (requires { Chapter::defaults(); }) defaults = Chapter::defaults();
        const Options options = parse_options(
            argc, argv, name, description,
            [&](OptionList& list, const Options& shared) { chapter.add_options(list, shared); },
            defaults);
        bool imagines_ranks = false;
        if constexpr (requires { chapter.imagines_ranks(); })
            imagines_ranks = chapter.imagines_ranks();
        if (!imagines_ranks) check_nodes(options);
        return run(options, chapter);
    });
}

}  // namespace ultrascale
