// What --trace and --profile make of the spans that trace.h has recorded.
#pragma once

#include <string>

namespace ultrascale {

// Writes all spans and the memory timeline of this rank to `path` (through a temporary name), as
// Chrome's and Perfetto's JSON. With several ranks every rank calls it and rank 0 writes one file
// with a process per rank. All times are on one clock, rank 0's, and begin at 0 with the first of
// the ranks' programs.
void trace_write(const std::string& path);

// The table of --profile: operations and communication that began at `since` or later, by name,
// most expensive first.
std::string profile_table(double since, double steps);

}  // namespace ultrascale
