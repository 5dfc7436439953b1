// The processes that a test has started: ranks, their watchers, the launcher's helpers. Each
// inherits an environment variable whose value is unique to the test, so that it can be found
// later.
#pragma once

#include <map>

#include "run_program.h"

namespace ultrascale::test {

class ProcessMark {
public:
    ProcessMark() { setenv("ULTRASCALE_TEST", mark_.c_str(), 1); }
    ~ProcessMark() {
        expect_none_left();
        unsetenv("ULTRASCALE_TEST");
    }
    ProcessMark(const ProcessMark&) = delete;

    std::map<pid_t, std::string> all() const {  // with their command lines
        std::map<pid_t, std::string> found;
        for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
            const pid_t pid = std::atoi(entry.path().filename().c_str());
            if (pid > 0 && pid != getpid() &&
                contains(slurp(entry.path() / "environ"), "ULTRASCALE_TEST=" + mark_))
                found[pid] = slurp(entry.path() / "cmdline");
        }
        return found;
    }
    // Those that run the program at this path, in the order of their numbers.
    std::vector<pid_t> running(const std::string& program) const {
        std::vector<pid_t> found;
        std::error_code ignored;
        for (const auto& [pid, command] : all())
            if (std::filesystem::equivalent(fmt::format("/proc/{}/exe", pid), program, ignored))
                found.push_back(pid);
        return found;
    }
    void kill_all() const {
        for (const auto& [pid, command] : all()) kill(pid, SIGKILL);
    }
    void expect_none_left() const {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (!all().empty() && std::chrono::steady_clock::now() < end)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        for (const auto& [pid, command] : all()) {
            ADD_FAILURE() << "still there: " << command;
            kill(pid, SIGKILL);
        }
    }

private:
    const std::string mark_ = fmt::format(
        "{}-{}.", getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
};

}  // namespace ultrascale::test
