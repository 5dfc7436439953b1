// Writes the spans recorded by trace.h as --trace's file and --profile's table.
#pragma once

#include <string>

namespace ultrascale {

// Writes all spans and the memory timeline to `path` (through a temporary file) in the JSON format
// of Chrome and Perfetto. All ranks call it, and rank 0 writes one file with a process per rank.
// All times are on rank 0's clock and begin at 0 with the start of the first rank's program.
void trace_write(const std::string& path);

// The table of --profile: operations and communication that began at `since` or later, by name,
// most expensive first. `steps`: the number of steps to average over.
std::string profile_table(double since, double steps);

}  // namespace ultrascale
