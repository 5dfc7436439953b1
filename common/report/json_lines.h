// The file that --json names: one JSON object a line, each written out at once, so that a program
// that is killed leaves the lines of what it had done. What stands in the lines is described in the
// README, "The lines of --json".
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace ultrascale {

// {"name": value, ...}, in this order.
using JsonValue = std::variant<int64_t, double, bool, std::string>;
using JsonFields = std::vector<std::pair<std::string, JsonValue>>;

class JsonLines {
public:
    // Rank 0 writes to `path`; the other ranks, and an empty path, write nothing. The file is
    // replaced by the first line, not before: a run that is refused leaves the former one as it
    // was.
    explicit JsonLines(std::string path) : path_(std::move(path)) {}
    JsonLines(const JsonLines&) = delete;
    ~JsonLines();
    // Throws UserError if the file cannot be written. `object` is one JSON object without a
    // newline.
    void write(const std::string& object);

private:
    std::string path_;
    int descriptor_ = -1;
};

}  // namespace ultrascale
