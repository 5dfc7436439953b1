// Why a stream stopped working, and how the process learns that a communication will never end.
#pragma once

#include <atomic>
#include <cstdio>
#include <exception>
#include <string>

#include "error.h"

namespace ultrascale {

struct Failure {
    std::exception_ptr exception;
    std::atomic<bool> seen = false;  // it has been thrown to the host somewhere
};

// Prints a failure that no wait has thrown.
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

// Communication is abandoned when an exception destroys a Work before it has ended, since the other
// ranks may never make their calls. From then on every wait for messages, and for streams in which
// messages are queued, throws in check_not_abandoned() instead of hanging, and
// finalize_communication() is no longer possible. (Tests reset the flag.)
inline std::atomic<bool> communication_abandoned = false;
inline void abandon_communication(bool abandoned = true) { communication_abandoned = abandoned; }
inline bool communication_is_abandoned() { return communication_abandoned; }
inline void check_not_abandoned() {
    check(!communication_abandoned,
          "communication was given up: an exception destroyed a Work that was not waited for");
}

}  // namespace ultrascale
