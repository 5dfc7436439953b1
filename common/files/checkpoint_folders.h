// The folders of a run that saves as it goes, checkpoint-140 and checkpoint-150, and which of them
// latest_checkpoint names (train/saves.h).
#pragma once

#include <cstdint>
#include <string>

namespace ultrascale {

std::string checkpoint_folder(int64_t step);  // "checkpoint-150"

// What --load DIR means: DIR/checkpoint-150 where DIR/latest_checkpoint says so, else DIR.
// UserError: it names what is not there.
std::string folder_to_load(const std::string& dir);

// Checkpoints ahead of `step` are another run's, which this one replaces.
void remove_ahead_of(const std::string& dir, int64_t step);
// Of those behind `step` the last one stays.
void remove_all_but_one_behind(const std::string& dir, int64_t step);

}  // namespace ultrascale
