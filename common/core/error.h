// How a program ends, and three ways to fail on purpose.
//
// UserError: the input is wrong (an option, a file, a size), or no result is possible with it.
// main's wrapper (cli.h: run_program) prints one line on rank 0, and every rank ends with the
// error's exit code. PeerError: another rank or the link to it is gone; the job ends at once.
// check(): a bug in the program, e.g. two shapes that do not fit together. The program ends and
// prints the source line and the reason.
#pragma once

#ifndef __CUDACC__  // nvcc's front end cannot compile fmt
#include <fmt/format.h>
#endif

#include <source_location>
#include <stdexcept>
#include <string>

namespace ultrascale {

// The exit codes of all programs, which tell a script what to do next. --help and the README show
// this table.
enum class Exit {
    fine = 0,
    missed = 1,      // --verify or a prediction failed
    input = 2,       // an option, a file, a size; too little memory, a full disk
    bug = 3,         // an internal error
    peer = 4,        // a rank died, or a link between ranks failed
    not_finite = 5,  // a loss, a norm or weights
    no_plan = 6,     // no layout divides the model and fits
    stopped = 85,    // a signal stopped the run, which can resume (train/stop.h)
};

struct UserError : std::runtime_error {
    explicit UserError(const std::string& what, Exit code = Exit::input)
        : std::runtime_error(what), exit_code(code) {}
    Exit exit_code;
};

struct PeerError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The device is out of memory (memory.h throws it; the message includes the memory table).
struct OutOfMemory : UserError {
    using UserError::UserError;
};

#ifndef __CUDACC__
// Throws UserError with a message formatted by fmt::format.
template <class... Args>
[[noreturn]] void user_error(fmt::format_string<Args...> format, Args&&... args) {
    throw UserError(fmt::format(format, std::forward<Args>(args)...));
}
#endif

inline void check(bool ok, const char* what,
                  std::source_location at = std::source_location::current()) {
    if (!ok)
        throw std::logic_error(std::string(at.file_name()) + ":" + std::to_string(at.line()) +
                               ": " + what);
}

}  // namespace ultrascale
