#include "json_lines.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "comm/comm.h"
#include "core/error.h"

namespace ultrascale {

JsonLines::~JsonLines() {
    if (descriptor_ >= 0) close(descriptor_);
}

void JsonLines::write(const std::string& object, bool on_page) {
    if (keep_ && on_page) kept_ += object + "\n";
    if (path_.empty() || Communicator::world().rank() != 0) return;
    if (descriptor_ < 0)
        descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    const std::string line = object + "\n";
    for (size_t written = 0; written < line.size();) {
        const ssize_t count =
            descriptor_ < 0 ? -1
                            : ::write(descriptor_, line.data() + written, line.size() - written);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) {
            const int reason = errno;
            // A full disk may have taken half of the line. If it cannot even be cut off, nothing
            // more can be done.
            if (written > 0) [[maybe_unused]]
                const int cut = ftruncate(descriptor_, whole_);
            user_error("{}: cannot be written: {}", path_, std::strerror(reason));
        }
        written += size_t(count);
    }
    whole_ += int64_t(line.size());
}

}  // namespace ultrascale
