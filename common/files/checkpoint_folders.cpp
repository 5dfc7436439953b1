#include "checkpoint_folders.h"

#include <charconv>
#include <filesystem>
#include <vector>

#include "checkpoint.h"
#include "core/error.h"
#include "file.h"

namespace ultrascale {

namespace fs = std::filesystem;

std::string checkpoint_folder(int64_t step) { return fmt::format("checkpoint-{}", step); }

namespace {

// The step in the name checkpoint-STEP; -1 for other names.
int64_t step_of(const std::string& name) {
    int64_t step = -1;
    const size_t digits = name.rfind('-') + 1;
    std::from_chars(name.data() + digits, name.data() + name.size(), step);
    return step >= 0 && name == checkpoint_folder(step) ? step : -1;
}

std::vector<int64_t> steps_in(const std::string& dir) {
    std::vector<int64_t> steps;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(dir, ignored))
        if (const int64_t step = step_of(entry.path().filename());
            step >= 0 && entry.is_directory(ignored))
            steps.push_back(step);
    return steps;
}

// Removes a checkpoint. It is renamed first, so that no reader finds a partial checkpoint under its
// name.
void remove_checkpoint(const std::string& dir, int64_t step) {
    const std::string folder = dir + "/" + checkpoint_folder(step), going = dir + "/.removing";
    std::error_code error;
    fs::remove_all(going, error);  // left by a run that was killed
    if (!error) fs::rename(folder, going, error);
    if (!error) fs::remove_all(going, error);
    if (error) user_error("{}: cannot be removed: {}", folder, error.message());
}

}  // namespace

void remove_ahead_of(const std::string& dir, int64_t step) {
    for (int64_t other : steps_in(dir))
        if (other > step) remove_checkpoint(dir, other);
}

void remove_all_but_one_behind(const std::string& dir, int64_t step) {
    int64_t kept = -1;
    for (int64_t other : steps_in(dir))
        if (other < step && other > kept &&
            has_training_state(dir + "/" + checkpoint_folder(other)))
            kept = other;
    for (int64_t other : steps_in(dir))
        if (other < step && other != kept) remove_checkpoint(dir, other);
}

std::string folder_to_load(const std::string& dir) {
    std::error_code ignored;
    if (!fs::is_directory(dir, ignored)) return dir;
    StagedFiles::recover(dir);  // if the last save was killed before it removed latest_checkpoint
    const std::string latest = dir + "/" + latest_checkpoint;
    if (!fs::exists(latest, ignored)) return dir;
    std::string name(MappedFile(latest).text());
    if (name.ends_with('\n')) name.pop_back();
    if (step_of(name) < 0)
        user_error("{}: names \"{}\"; it should name a folder such as checkpoint-100", latest,
                   printable(name));
    if (!has_training_state(dir + "/" + name))
        user_error("{}: names {}, which is not there; give --load the folder of another checkpoint",
                   latest, name);
    return dir + "/" + name;
}

}  // namespace ultrascale
