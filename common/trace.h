// What happened when: --trace, --profile and --explain.
//
// --trace and --profile record spans (a name, a lane, begin and end, the FLOPs and bytes it stands for); --trace writes
// them as Chrome/Perfetto JSON with memory by category as counters, --profile adds them up by name. --explain prints one
// step's events in the order in which they fire: units, passes, hooks, collectives.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stream.h"

namespace ultrascale {

double now_seconds();  // since the program's start, on the host's steady clock

struct Span {
    std::string name;
    std::string lane;  // the stream's name; "phase" for forward, backward, update
    double begin, end;
    double flops, bytes;
};

void trace_record(bool on);  // spans are kept while this is on
bool trace_recording();
const std::vector<Span>& trace_spans();  // waits until the device has reached their ends
void trace_clear();

// Adds a span that has already ended. Any thread.
void trace_span(std::string_view name, std::string_view lane, double begin, double end, double flops = 0, double bytes = 0);
// Likewise for one whose end the device may not have reached yet.
void trace_span(const char* name, const std::string& lane, const Timestamp& begin, const Timestamp& end, double bytes);

// A span from construction to destruction in the compute stream's order, by the device's own clock: every operation of ops.h
// opens one. `flops` counts multiplications and additions, `bytes` each input read once and each output written once. Also
// a named range for NVIDIA's profilers (NVTX).
class OpSpan {
public:
    OpSpan(const char* name, double flops, double bytes, const char* lane = "compute");
    ~OpSpan();
    OpSpan(const OpSpan&) = delete;

private:
    const char *name_, *lane_;
    double flops_, bytes_;
    bool recorded_;
    Timestamp begin_;
};

// Writes all spans and the memory timeline of this rank to `path` (through a temporary name). With several ranks every
// rank calls it and rank 0 writes one file with a process per rank.
void trace_write(const std::string& path);

// The table of --profile: operations and communication that began at `since` or later, by name, most expensive first.
std::string profile_table(double since, double steps);

// --explain: while on, explain() prints its line on rank 0 with a running number.
void explain_enable(bool on);
bool explain_enabled();
void explain(std::string_view line);

}  // namespace ultrascale
