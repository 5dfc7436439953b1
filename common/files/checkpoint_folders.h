// The folders of a run with --save-every, e.g. checkpoint-140 and checkpoint-150, and the file
// latest_checkpoint that names one of them (train/saves.h).
#pragma once

#include <cstdint>
#include <string>

namespace ultrascale {

std::string checkpoint_folder(int64_t step);  // "checkpoint-150"

// The folder that --load DIR means: DIR/checkpoint-150 if DIR/latest_checkpoint names it, else DIR.
// UserError if the named folder does not exist.
std::string folder_to_load(const std::string& dir);

// Removes checkpoints after `step`: they belong to another run, which this one replaces.
void remove_ahead_of(const std::string& dir, int64_t step);
// Removes the checkpoints before `step` except for the last one.
void remove_all_but_one_behind(const std::string& dir, int64_t step);

}  // namespace ultrascale
