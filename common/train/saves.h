// The folder that --save names, while the training runs (--save-every) and at its end.
//
//   DIR/checkpoint-140/       the whole state of the training after step 140,
//   DIR/checkpoint-150/       and after step 150; older ones are removed
//   DIR/latest_checkpoint     "checkpoint-150": how far the training has come
//   DIR/config.json ...       the state at the end; from then on there is no latest_checkpoint
//
// Each save is staged (file.h: StagedFiles), DIR/latest_checkpoint is replaced by a rename once the
// checkpoint that it names is complete, and the save at the end removes it in the same commit. So a
// run that is killed at any moment leaves its last complete save, and --load DIR goes on from
// there. Nothing is guessed from names or times: what an earlier run left in the folder, further on
// or not, is never taken for this run's.
#pragma once

#include <functional>
#include <string>

#include "report/cli.h"

namespace ultrascale {

struct TrainingState;

class Saves {
public:
    // `write` saves the training's state to the folder that it is given. All ranks call it.
    Saves(const Options& options, std::function<void(const std::string&)> write)
        : options_(options), write_(std::move(write)) {}
    // The header's lines: where the run starts, if not at the beginning, and when it saves.
    void print_plan(const TrainingState& start) const;
    void after_step(int64_t step) const;  // saves to DIR/checkpoint-STEP where --save-every says so
    void at_end(int64_t step) const;      // saves to DIR where --save says so

private:
    const Options& options_;
    std::function<void(const std::string& dir)> write_;
};

}  // namespace ultrascale
