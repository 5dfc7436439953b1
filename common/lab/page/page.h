// The page of --html: one file that a browser shows without a network. It holds the lines of
// --json, a timeline of all ranks over two steps, and the chapter's pictures; common/lab/page/ has
// the styles and scripts that draw them.
#pragma once

#include <string>

namespace ultrascale {

// How many steps after warm-up the timeline shows.
inline constexpr int64_t page_steps = 2;

// Throws UserError if the page could not be written to `path`. From now on pictures are kept for
// it.
void open_page(const std::string& path);

// The recording of all ranks between `since` and `until` (this rank's now_seconds()), as JSON:
// [{"lanes": [...], "names": [...], "spans": [[lane, name, begin, duration, GFLOP, bytes, ranks]],
// "memory": [[time, bytes of each category ...]], "left_out": 0}, ...], by rank. Times are in
// microseconds on rank 0's clock. A rank keeps its first 20,000 spans ("left_out" counts the
// others), and for memory the highest point in each 2000th part of the time. All ranks call it;
// only rank 0 gets the result.
std::string page_timeline(double since, double until);

// Writes the page on rank 0. `json_lines` are the lines of --json, one object a line; `formulas` is
// memory_page_data() or "null".
void write_page(const std::string& path, const std::string& json_lines,
                const std::string& timeline = "[]", const std::string& formulas = "null");

}  // namespace ultrascale
