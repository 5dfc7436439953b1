// The file of --json: one JSON object per line. Each line is written immediately and as a whole, so
// a program that is killed, or whose disk is full, leaves the lines for all that it has done. The
// README describes them under "The lines of --json".
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
    // Rank 0 writes to `path`; nothing is written on other ranks or with an empty path. The first
    // line replaces the file, so that a run which is refused leaves an existing file unchanged.
    // With `keep` it also keeps what it wrote, for the page of --html.
    explicit JsonLines(std::string path, bool keep = false) : path_(std::move(path)), keep_(keep) {}
    JsonLines(const JsonLines&) = delete;
    ~JsonLines();
    // Throws UserError if the file cannot be written. `object` is a JSON object without newlines;
    // on_page: whether it is among what is kept.
    void write(const std::string& object, bool on_page = true);
    const std::string& kept() const { return kept_; }

private:
    std::string path_, kept_;
    bool keep_;
    int descriptor_ = -1;
    int64_t whole_ = 0;  // bytes of the lines so far
};

}  // namespace ultrascale
