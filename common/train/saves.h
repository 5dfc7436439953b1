// The files that --save writes, during the training (--save-every) and at its end.
//
//   DIR/checkpoint-140/       the whole training state after step 140,
//   DIR/checkpoint-150/       and after step 150; older ones are removed
//   DIR/latest_checkpoint     "checkpoint-150": the latest checkpoint
//   DIR/config.json ...       the state at the end; latest_checkpoint is then removed
//
// Each save is staged (file.h: StagedFiles). DIR/latest_checkpoint is replaced by a rename as soon
// as the checkpoint that it names is complete, and the save at the end removes it in the same
// commit. So a run that is killed at any moment leaves its last complete save, and --load DIR
// resumes from there. Nothing is inferred from names or times: checkpoints that an earlier run left
// in the folder, even of later steps, are never mistaken for this run's.
//
// With --save-async the training does not wait for the files. It waits while the state is copied to
// host memory; then a thread writes the checkpoint from the copies, in the same order, beside the
// next steps. A save first waits until the one before is written, as there is one set of copies.
#pragma once

#include <functional>
#include <future>
#include <string>

#include "lab/options/cli.h"

namespace ultrascale {

class Report;
struct TrainingState;

// --save-async: copies this rank's share of what a save writes, which has so many bytes.
struct SaveCopies {
    std::function<void()> copy = {};
    int64_t bytes = 0;
};

// Weights that are not finite are never saved, so they never replace a finite checkpoint. (Without
// a step, --save copies what was loaded.)
class Saves {
public:
    // All ranks call them: `write` saves the training state to the given folder; `finite` says
    // whether the weights are finite now, at the start or after a step. If there is a copies.copy,
    // it is called before `write`, which then reads only the copies, in another thread.
    Saves(const Options& options, std::function<void(const std::string&)> write,
          std::function<bool()> finite, SaveCopies copies = {});
    // Prints the header's lines: where a resumed run starts, and when the run saves.
    void print_plan(const TrainingState& start) const;
    // after_step() saves to DIR/checkpoint-STEP if --save-every says so; at_end() saves to DIR if
    // --save is given. They return false, and save nothing, if the weights are not finite. If an
    // earlier save beside the steps has failed, they throw its error.
    [[nodiscard]] bool after_step(int64_t step);
    [[nodiscard]] bool at_end(int64_t step);
    void wait();  // until the save beside the steps is written; throws its error
    // Prints how long the saves between the steps stopped the training, after wait().
    void report_times(Report& report) const;
    // The folder of the last checkpoint whose weights are finite, either this run's or --load's.
    // Empty if there is none.
    const std::string& last_finite() const { return last_finite_; }

private:
    void save(const std::string& dir, int64_t step);

    const Options& options_;
    std::function<void(const std::string& dir)> write_;
    std::function<bool()> finite_;
    SaveCopies copies_;
    std::string last_finite_;
    // Of the saves between the steps, in seconds: what they stopped the training, what of that
    // they copied and waited for the save before; and what they wrote, in whichever thread.
    int64_t saves_ = 0;
    double stopped_ = 0, copied_ = 0, waited_ = 0, written_ = 0;
    std::future<void> writing_;  // the save beside the steps; it is destroyed first, and waits
};

}  // namespace ultrascale
