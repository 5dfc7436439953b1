// Private to the backends' streams: why a stream stopped working.
#pragma once

#include <atomic>
#include <cstdio>
#include <exception>
#include <string>

namespace ultrascale {

struct Failure {
    std::exception_ptr exception;
    std::atomic<bool> seen = false;  // it has been thrown to the host somewhere
};

// Prints a failure that nobody has waited for.
inline void report_unseen_failure(const Failure* failure, const std::string& stream_name) {
    if (!failure || failure->seen) return;
    try {
        std::rethrow_exception(failure->exception);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "stream %s failed: %s\n", stream_name.c_str(), error.what());
    } catch (...) {
        std::fprintf(stderr, "stream %s failed\n", stream_name.c_str());
    }
}

}  // namespace ultrascale
