#include "saves.h"

#include "core/trace.h"
#include "files/checkpoint.h"
#include "files/checkpoint_folders.h"
#include "lab/report/report.h"

namespace ultrascale {

Saves::Saves(const Options& options, std::function<void(const std::string&)> write,
             std::function<bool()> finite, SaveCopies copies)
    : options_(options),
      write_(std::move(write)),
      finite_(std::move(finite)),
      copies_(std::move(copies)) {
    if (!options.load.empty() && finite_()) last_finite_ = options.load;
}

void Saves::print_plan(const TrainingState& start) const {
    if (start.step > 0)
        print(fmt::format("  start   resumes from {}, after step {}", options_.load, start.step));
    if (options_.save_every > 0)
        print(fmt::format("  saves   every {} to {}/checkpoint-STEP; the last two are kept{}",
                          format_count(options_.save_every, "step"), options_.save,
                          options_.save_async ? "\n          written beside the steps" : ""));
}

bool Saves::after_step(int64_t step) {
    if (options_.save_every == 0 || step % options_.save_every != 0) {
        using namespace std::chrono_literals;
        if (writing_.valid() && writing_.wait_for(0s) == std::future_status::ready) wait();
        return true;
    }
    const double begin = now_seconds();
    wait();
    waited_ += now_seconds() - begin;
    if (!finite_()) return false;
    if (copies_.copy) {
        const double since = now_seconds();
        const Untraced one_span("copy for a save");
        copies_.copy();
        copied_ += now_seconds() - since;
        writing_ = std::async(std::launch::async, [this, step] { save(options_.save, step); });
    } else {
        save(options_.save, step);
    }
    last_finite_ = options_.save + "/" + checkpoint_folder(step);
    ++saves_, stopped_ += now_seconds() - begin;
    return true;
}

// The whole save between two steps, in either thread.
void Saves::save(const std::string& dir, int64_t step) {
    const double begin = now_seconds();
    write_(dir + "/" + checkpoint_folder(step));
    if (Communicator::world().rank() == 0) {
        write_file(dir + "/" + latest_checkpoint, checkpoint_folder(step) + "\n");
        remove_ahead_of(dir, step);
        remove_all_but_one_behind(dir, step);
    }
    written_ += now_seconds() - begin;
}

void Saves::wait() {
    if (writing_.valid()) writing_.get();
}

bool Saves::at_end(int64_t step) {
    wait();
    if (options_.save.empty()) return true;
    if (options_.steps > 0 && !finite_()) return false;  // without a step it only copies
    if (copies_.copy) copies_.copy();
    write_(options_.save);
    if (Communicator::world().rank() == 0) remove_ahead_of(options_.save, step);
    print(fmt::format("\nsaved to {} after step {}", options_.save, step));
    return true;
}

void Saves::report_times(Report& report) const {
    if (saves_ == 0) return;
    const double n = double(saves_);
    print(fmt::format("\n{} between steps: each stopped the training for {:.3f} s",
                      format_count(saves_, "save"), stopped_ / n));
    report.value("saves", "count", n), report.value("saves", "stopped_seconds", stopped_ / n);
    report.value("saves", "written_seconds", written_ / n);
    if (!copies_.copy) return;
    print(
        fmt::format("  {:.3f} s of it to copy {} ({:.3g} GB/s), {:.3f} s to wait for the save "
                    "before\n  its files were written beside the steps, in {:.3f} s",
                    copied_ / n, format_bytes(double(copies_.bytes)),
                    double(copies_.bytes) * n / copied_ / 1e9, waited_ / n, written_ / n));
    report.value("saves", "copied_seconds", copied_ / n);
    report.value("saves", "waited_seconds", waited_ / n);
}

}  // namespace ultrascale
