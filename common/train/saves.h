// What --save writes, during the training (--save-every) and at its end.
//
//   DIR/checkpoint-140/       the whole training state after step 140,
//   DIR/checkpoint-150/       and after step 150; older ones are removed
//   DIR/latest_checkpoint     "checkpoint-150": the latest checkpoint
//   DIR/config.json ...       the state at the end; latest_checkpoint is then removed
//
// Each save is staged (file.h: StagedFiles). DIR/latest_checkpoint is replaced by a rename as soon
// as the checkpoint that it names is complete, and the save at the end removes it in the same
// commit. So a run that is killed at any moment leaves its last complete save, and --load DIR
// resumes from there. Nothing is inferred from names or times: checkpoints of an earlier run in the
// folder, even of later steps, are never mistaken for this run's.
#pragma once

#include <functional>
#include <string>

#include "report/cli.h"

namespace ultrascale {

struct TrainingState;

class Saves {
public:
    // `write` saves the training state to the given folder. All ranks call it.
    Saves(const Options& options, std::function<void(const std::string&)> write)
        : options_(options), write_(std::move(write)) {}
    // Prints the header's lines: where a resumed run starts, and when the run saves.
    void print_plan(const TrainingState& start) const;
    void after_step(int64_t step) const;  // saves to DIR/checkpoint-STEP if --save-every says so
    void at_end(int64_t step) const;      // saves to DIR if --save is given

private:
    const Options& options_;
    std::function<void(const std::string& dir)> write_;
};

}  // namespace ultrascale
