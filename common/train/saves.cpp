#include "saves.h"

#include "files/checkpoint.h"
#include "files/checkpoint_folders.h"
#include "lab/report/report.h"

namespace ultrascale {

Saves::Saves(const Options& options, std::function<void(const std::string&)> write,
             std::function<bool()> finite)
    : options_(options), write_(std::move(write)), finite_(std::move(finite)) {
    if (!options.load.empty() && finite_()) last_finite_ = options.load;
}

void Saves::print_plan(const TrainingState& start) const {
    if (start.step > 0)
        print(fmt::format("  start   resumes from {}, after step {}", options_.load, start.step));
    if (options_.save_every > 0)
        print(fmt::format("  saves   every {} to {}/checkpoint-STEP; the last two are kept",
                          format_count(options_.save_every, "step"), options_.save));
}

bool Saves::after_step(int64_t step) {
    if (options_.save_every == 0 || step % options_.save_every != 0) return true;
    if (!finite_()) return false;
    const std::string& dir = options_.save;
    write_(last_finite_ = dir + "/" + checkpoint_folder(step));
    if (Communicator::world().rank() != 0) return true;
    write_file(dir + "/" + latest_checkpoint, checkpoint_folder(step) + "\n");
    remove_ahead_of(dir, step);
    remove_all_but_one_behind(dir, step);
    return true;
}

bool Saves::at_end(int64_t step) {
    if (options_.save.empty()) return true;
    if (options_.steps > 0 && !finite_()) return false;  // without a step it only copies
    write_(options_.save);
    if (Communicator::world().rank() == 0) remove_ahead_of(options_.save, step);
    print(fmt::format("\nsaved to {} after step {}", options_.save, step));
    return true;
}

}  // namespace ultrascale
