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
// Left to itself, MPICH's launcher would end with the number of the signal (9). So over the same
// connection the shell asks it to abort the job as PMI_Abort() would, with the exit code of a dead
// peer.
//
// A peer may be copying from the dead rank's memory at that moment; then MPI's transport fails and
// calls abort(), and that peer's shell would name an innocent rank, sometimes as the only one (3 of
// 24 kills). So a rank that aborts, or to which MPI reports an error, first waits for the launcher
// to end it.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "comm_mpi.h"
#include "core/error.h"

namespace ultrascale {

static pid_t watcher = 0;  // 0: none

static void wait_for_the_launcher() {
    timespec left{.tv_sec = 2};
    while (nanosleep(&left, &left) != 0) {
    }
}
static void before_abort(int) { wait_for_the_launcher(); }  // then abort() continues

void end_after_mpi_error(int code) {
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0, error_class = MPI_ERR_OTHER;
    MPI_Error_string(code, text, &length);
    MPI_Error_class(code, &error_class);
    std::string says = std::string("MPI: ") + text;
    says = says.substr(0, says.find_first_of("\n"));
    for (int call_error : {MPI_ERR_BUFFER, MPI_ERR_COUNT, MPI_ERR_TYPE, MPI_ERR_TAG, MPI_ERR_RANK,
                           MPI_ERR_REQUEST, MPI_ERR_ARG, MPI_ERR_TRUNCATE})
        if (error_class == call_error) abort_all_ranks(std::runtime_error(says));
    wait_for_the_launcher();
    abort_all_ranks(PeerError(says));
}

// By default MPI ends the job itself, with an exit code of its own.
static void on_mpi_error(MPI_Comm*, int* code, ...) {
    int error_class = 0;
    MPI_Error_class(*code, &error_class);
    if (error_class != MPI_ERR_IN_STATUS) end_after_mpi_error(*code);
}  // else Exchange looks which message failed

void watch_this_rank(const std::string& rank) {
    MPI_Errhandler handler;
    MPI_Comm_create_errhandler(on_mpi_error, &handler);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
    MPI_Errhandler_free(&handler);
    struct sigaction action = {};
    action.sa_handler = before_abort;
    sigaction(SIGABRT, &action, nullptr);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;  // a job without watchers works too
    std::string text = rank + " (pid " + std::to_string(getpid()) + ") died; the job ends";
    // The connection to the launcher gets a number of one digit: shells redirect only to
    // descriptors of one digit. As in abort_all_ranks(), the launcher is given time to read the
    // line.
    constexpr int to_launcher = 3;
    const char* const pmi = std::getenv("PMI_FD");
    std::string script = "trap '' TERM USR1; read -r _ || { echo \"$0\" >&2";
    if (pmi)
        script += fmt::format("; sleep 0.2; echo cmd=abort exitcode={} >&{}", int(Exit::peer),
                              to_launcher);
    script += "; }";
    char* command[] = {const_cast<char*>("sh"), const_cast<char*>("-c"), script.data(), text.data(),
                       nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO);
    if (pmi) posix_spawn_file_actions_adddup2(&actions, std::atoi(pmi), to_launcher);
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
