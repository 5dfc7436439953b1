// What happened when: --trace, --profile and --explain.
//
// --trace and --profile record spans: an operation's name, what it works for, a lane, begin and
// end, the FLOPs and bytes it stands for (report/trace_file.h writes them). --explain prints one
// step's events in the order in which they fire: units, passes, hooks, collectives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stream.h"

namespace ultrascale {

double now_seconds();    // since the program's start, on the host's steady clock
double program_start();  // when that was, on the steady clock that all processes of a machine share

struct Span {
    std::string name;  // the operation's: "matmul"
    std::string of;    // what it works for: "layers.3.mlp.down_proj dX"; may be empty
    std::string lane;  // the stream's name; "phase" for steps, micro-batches, phases and units
    double begin = 0, end = 0;
    double flops = 0, bytes = 0;
    // Of a communication: its group, and which call of its kind this is in the group. All ranks of
    // the group number a call alike, so that it can be found on each of them.
    std::string group = "";
    int first_rank = 0, ranks = 0;  // the lowest rank of world() in the group, and how many it has
    int64_t call = 0;
};
std::string full_name(const Span& span);  // what a viewer shows: "matmul layers.3.mlp.down_proj dX"

void trace_record(bool on);  // spans are kept while this is on
bool trace_recording();
const std::vector<Span>& trace_spans();  // waits until the device has reached their ends
void trace_clear();
// What a transport has under way and adds later: called before spans are read.
void trace_complete_with(void (*function)());

// Adds a span that has ended, or whose times the device may not have reached yet. Any thread. The
// caller asks whether spans are kept, and asks when the work is issued.
void trace_span(Span span, double begin, double end);
void trace_span(Span span, const Timestamp& begin, const Timestamp& end);

// What the work that this thread issues is for, from construction to destruction. Names nest.
// Inside
//     TraceName unit(TraceName::part, "layers.3"), pass(TraceName::pass, "backward");
//     TraceName linear(TraceName::part, "mlp.down_proj"), product(TraceName::pass, "dX");
// a product is recorded as "matmul layers.3.mlp.down_proj dX". A part is a part of the one around
// it; of passes the innermost counts. `whole` begins anew: what a hook sends is not for the layer
// whose backward has called the hook. The name must outlive the object. Nothing happens while
// nothing is recorded.
class TraceName {
public:
    enum Kind { part, pass, whole };
    // A number follows the name: "bucket 2".
    TraceName(Kind kind, std::string_view name, int64_t number = -1);
    ~TraceName();
    TraceName(const TraceName&) = delete;

private:
    friend std::string trace_name();
    std::string_view name_;
    int64_t number_;
    const TraceName* outer_;
    Kind kind_;
    bool active_;
};
std::string trace_name();  // of what is issued here and now

struct OpenSpan {
    Span span;
    Timestamp begin;
};

// A span from construction to destruction in the compute stream's order, by the device's own clock:
// every operation of ops.h opens one. `flops` counts multiplications and additions, `bytes` each
// input read once and each output written once. Also a named range for NVIDIA's profilers (NVTX).
// The names are copied, and only while spans are kept.
class OpSpan {
public:
    OpSpan(std::string_view name, double flops, double bytes, std::string_view lane = "compute");
    ~OpSpan();
    OpSpan(const OpSpan&) = delete;

private:
    std::optional<OpenSpan> open_;  // none: nothing is recorded
};

// Likewise a stretch of a step, in the lane "phase", where it encloses what runs in it. Nothing at
// all unless spans are kept.
class SectionSpan {
public:
    SectionSpan(std::string_view name, int64_t number);  // "step 3"
    SectionSpan();                                       // called trace_name(): "layers.3 backward"
    ~SectionSpan() { end(); }
    SectionSpan(const SectionSpan&) = delete;
    void end();

private:
    std::optional<OpenSpan> open_;
};

// --explain: while on, explain() prints its line with a running number. It is on on rank 0 alone.
void explain_enable(bool on);
bool explain_enabled();
void explain(std::string_view line);

}  // namespace ultrascale
