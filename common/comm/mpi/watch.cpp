// A rank that is killed is named: "rank 2 (pid 1234) died; the job ends".
//
// It cannot print this itself, and its peers have no time to: MPICH's launcher kills them as soon
// as it sees that a rank is gone (measured with MPICH 4.0.2: a peer's thread that waits for the pid
// to end prints its line in only one run of four). So every rank starts a shell that reads from a
// pipe to which only the rank could write, and never does. When the rank dies, for whatever reason,
// the pipe ends; the shell prints the line and ends too. It has inherited the rank's connection to
// the launcher, so the launcher notices the death only after the line has been written (30 of 30
// runs). When the launcher ends a job, it kills each rank's process group and with it the shell,
// which prints nothing. As long as all is well the shell sleeps and the rank has no extra work.
//
// A peer may be copying from the dead rank's memory at that moment; then MPI's transport fails and
// calls abort(), and that peer's shell would name an innocent rank, sometimes as the only one (3 of
// 24 kills). So a rank that aborts first waits for the launcher to end it.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <string>

#include "comm_mpi.h"

namespace ultrascale {

static pid_t watcher = 0;  // 0: none

static void before_abort(int) {
    timespec left{.tv_sec = 2};
    while (nanosleep(&left, &left) != 0) {
    }  // then abort() continues
}

void watch_this_rank(int rank) {
    struct sigaction action = {};
    action.sa_handler = before_abort;
    sigaction(SIGABRT, &action, nullptr);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;  // a job without watchers works too
    std::string text = "rank " + std::to_string(rank) + " (pid " + std::to_string(getpid()) +
                       ") died; the job ends";
    char* command[] = {const_cast<char*>("sh"), const_cast<char*>("-c"),
                       const_cast<char*>("read -r _ || echo \"$0\" >&2"), text.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO);
    if (posix_spawn(&watcher, "/bin/sh", &actions, nullptr, command, environ) != 0) watcher = 0;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[0]);  // the other end stays open as long as this process lives
}

void stop_watching() {
    if (watcher == 0) return;
    kill(watcher, SIGKILL);
    waitpid(watcher, nullptr, 0);
    watcher = 0;
}

}  // namespace ultrascale
