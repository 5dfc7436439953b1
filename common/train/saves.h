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
#pragma once

#include <functional>
#include <string>

#include "lab/options/cli.h"

namespace ultrascale {

struct TrainingState;

// Weights that are not finite are never saved, so they never replace a finite checkpoint. (Without
// a step, --save copies what was loaded.)
class Saves {
public:
    // All ranks call both: `write` saves the training state to the given folder; `finite` says
    // whether the weights are finite now, at the start or after a step.
    Saves(const Options& options, std::function<void(const std::string&)> write,
          std::function<bool()> finite);
    // Prints the header's lines: where a resumed run starts, and when the run saves.
    void print_plan(const TrainingState& start) const;
    // after_step() saves to DIR/checkpoint-STEP if --save-every says so; at_end() saves to DIR if
    // --save is given. They return false, and save nothing, if the weights are not finite.
    [[nodiscard]] bool after_step(int64_t step);
    [[nodiscard]] bool at_end(int64_t step);
    // The folder of the last checkpoint whose weights are finite, either this run's or --load's.
    // Empty if there is none.
    const std::string& last_finite() const { return last_finite_; }

private:
    const Options& options_;
    std::function<void(const std::string& dir)> write_;
    std::function<bool()> finite_;
    std::string last_finite_;
};

}  // namespace ultrascale
