// Two ways to fail on purpose.
//
// UserError: the input is wrong (an option, a file, a size). main's wrapper (cli.h: run_program)
// prints one line on rank 0 and every rank ends with exit code 2. check(): a bug in the program,
// e.g. two shapes that do not fit together. Ends the program with the source line and the reason.
#pragma once

#ifndef __CUDACC__  // nvcc's front end cannot compile fmt
#include <fmt/format.h>
#endif

#include <source_location>
#include <stdexcept>
#include <string>

namespace ultrascale {

struct UserError : std::runtime_error {
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
