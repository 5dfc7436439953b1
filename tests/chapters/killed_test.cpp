// kill -9 at random moments: whatever the run was doing, --save's directory holds its last complete
// save, and training resumes from it as if nothing had happened.
#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "compare_runs.h"
#include "processes.h"

namespace ultrascale::test {
namespace {

namespace fs = std::filesystem;

// A model so small that its runs spend most of their time on saving.
class TinyModel {
public:
    TinyModel() {
        put(dir_ / "config.json", config_json({{"num_hidden_layers", 1},
                                               {"hidden_size", 16},
                                               {"num_attention_heads", 2},
                                               {"head_dim", 8},
                                               {"intermediate_size", 24}}));
    }
    const std::string& path() const { return dir_.path(); }

private:
    TempDir dir_;
};

class Victim {
public:
    Victim(int ranks, const std::string& chapter, const std::string& arguments,
           const std::string& saving = "")
        : ranks_(ranks),
          chapter_(chapter),
          saving_("--save-every 1 " + saving),
          arguments_("--seq 8 --micro-batch 2 --lr 1e-2 --shuffle --no-verify " + arguments),
          uninterrupted_(train(
              ranks, chapter,
              fmt::format("--model {} --steps {} {}", model_.path(), all_steps, arguments_))) {}

    void survives(int kills, int seed) {
        auto step_time = std::chrono::duration<double>::max();
        for (int run = 0; run < 3; ++run) {  // the shortest counts: others may have used the core
            const auto begin = std::chrono::steady_clock::now();
            run_a_while();
            step_time = std::min<std::chrono::duration<double>>(
                step_time, (std::chrono::steady_clock::now() - begin) / steps_of_a_run);
        }
        std::mt19937 random(seed);
        std::uniform_real_distribution<double> part(0, 1);
        for (int k = 0; k < kills; ++k) {
            SCOPED_TRACE(fmt::format("kill {}", k));
            const std::set<std::string> half_done = unfinished();
            kill_after(int(random() % steps_of_a_run), part(random) * step_time);
            in_a_save_ += !std::ranges::includes(half_done, unfinished());
            expect_to_go_on();
        }
        testing::Test::RecordProperty("kills in a save", in_a_save_);
        testing::Test::RecordProperty("different steps", int(steps_.size()));
    }
    int in_a_save() const { return in_a_save_; }
    const std::set<int64_t>& steps() const { return steps_; }

private:
    static constexpr int all_steps = 60, steps_of_a_run = 6, compared = 2;

    bool anything_saved() const {
        return fs::exists(saved_ + "/latest_checkpoint") || fs::exists(saved_ + "/config.json");
    }
    // Resumes from the last save and saves after each step.
    void run_a_while() {
        const std::string from = anything_saved() ? "--load " + saved_ : "--model " + model_.path();
        const std::string arguments =
            fmt::format("{} {} --steps {} --save {} {} --peak-tflops 1", from, arguments_,
                        steps_of_a_run, saved_, saving_);
        ranks_ == 0 ? run(chapter_, arguments) : run_ranks(ranks_, chapter_, arguments, 60);
    }
    // Waits for `saves` saves of the run, and a moment more.
    void kill_after(int saves, std::chrono::duration<double> moment) {
        const ProcessMark mark;
        std::atomic<bool> over = false;
        std::thread killer([&] {
            const std::string latest = saved_ + "/latest_checkpoint";
            std::string last = slurp(latest);
            for (int seen = 0; seen < saves && !over; std::this_thread::sleep_for(moment / 50))
                if (const std::string now = slurp(latest); now != last) ++seen, last = now;
            std::this_thread::sleep_for(moment);
            mark.kill_all();
        });
        run_a_while();
        over = true;
        killer.join();
        mark.kill_all();
    }
    // Returns the files that a kill in the middle of a save left behind.
    std::set<std::string> unfinished() const {
        std::set<std::string> found;
        if (!fs::exists(saved_)) return found;
        for (const auto& entry : fs::recursive_directory_iterator(saved_)) {
            const std::string name = entry.path().filename();
            if (name == ".saving" || name == ".removing" || name.ends_with(".tmp"))
                found.insert(entry.path());
        }
        return found;
    }
    void expect_to_go_on() {
        if (!anything_saved()) return;  // killed before its first save
        const Outcome next = train(
            ranks_, chapter_, fmt::format("--load {} {} --steps {}", saved_, arguments_, compared));
        ASSERT_EQ(next.steps.size(), size_t(compared));
        const auto first = next.steps[0].at("step").get<int64_t>();
        steps_.insert(first);
        for (const char* field : {"loss", "grad_norm"}) {
            const std::vector<double> straight = uninterrupted_.of(field);
            const std::vector<double> expected(straight.begin() + first - 1,
                                               straight.begin() + first - 1 + compared);
            EXPECT_LE(largest_difference(next.of(field), expected), on_gpu ? 1e-4 : 0)
                << field << " from step " << first;
        }
        if (first + steps_of_a_run + compared > all_steps) fs::remove_all(saved_);
    }

    const TinyModel model_;
    const TempDir dir_;
    const std::string saved_ = dir_ / "saved";
    const int ranks_;
    const std::string chapter_, saving_, arguments_;
    const Outcome uninterrupted_;
    int in_a_save_ = 0;
    std::set<int64_t> steps_;
};

TEST(Killed, AtAFewMoments) {
    Victim alone(0, "00_single_gpu", ""), one_of_two(2, "02_zero", "--stage 3"),
        beside(2, "02_zero", "--stage 3", "--save-async");
    for (Victim* victim : {&alone, &one_of_two, &beside}) {
        victim->survives(3, 1);
        EXPECT_FALSE(victim->steps().empty());
    }
}

class LongKilled : public testing::Test {
protected:
    static void survives(int ranks, const char* chapter, const char* arguments,
                         const char* saving = "") {
        Victim victim(ranks, chapter, arguments, saving);
        victim.survives(50, 2);
        EXPECT_GE(victim.in_a_save(), 5);
        EXPECT_GE(victim.steps().size(), 20u);
    }
};
TEST_F(LongKilled, AtFiftyMoments) { survives(0, "00_single_gpu", ""); }
TEST_F(LongKilled, AtFiftyMomentsOnTwoRanks) { survives(2, "02_zero", "--stage 3"); }
TEST_F(LongKilled, AtFiftyMomentsWhileItSavesBesideTheSteps) {
    survives(2, "02_zero", "--stage 3", "--save-async");
}
TEST_F(LongKilled, AtFiftyMomentsWhileParametersAreGathered) {
    survives(2, "02_zero", "--stage 2 --gather-overlap forward");
}

}  // namespace
}  // namespace ultrascale::test
