// The recording behind --trace, --profile and --explain.
//
// --trace and --profile record spans: an operation's name, the part of the model it works for, a
// lane, begin and end, its FLOPs and bytes (lab/page/trace_file.h writes them). --explain prints
// one step's events in the order in which they fire: units, passes, hooks, collectives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stream.h"

namespace ultrascale {

double now_seconds();    // since the program's start, on the host's steady clock
double program_start();  // its time on the steady clock that all processes of a machine share

struct Span {
    std::string name;  // the operation's name: "matmul"
    std::string of;    // the part it works for: "layers.3.mlp.down_proj dX"; may be empty
    // The stream's name; "phase" for steps, micro-batches, phases and units, and "phase beside" for
    // those of work that takes turns with other work.
    std::string lane;
    double begin = 0, end = 0;
    double flops = 0, bytes = 0;
    // Communication also has a group, and the call's number among the group's calls of its kind. A
    // call has the same number on all ranks of the group, so it can be matched between them.
    std::string group = "";
    int first_rank = 0, ranks = 0;  // the group's lowest rank in world(), and its size
    int64_t call = 0;
};
std::string full_name(const Span& span);  // what a viewer shows: "matmul layers.3.mlp.down_proj dX"

void trace_record(bool on);  // spans are kept while this is on
bool trace_recording();
const std::vector<Span>& trace_spans();  // waits until the device has reached their ends
void trace_clear();
// Registers a function that is called before spans are read; it adds the spans that a transport
// still holds back.
void trace_complete_with(void (*function)());

// Adds a span that has ended, or whose times the device may not have reached yet. Any thread may
// call it. The caller checks trace_recording() when the work is issued.
void trace_span(Span span, double begin, double end);
void trace_span(Span span, const Timestamp& begin, const Timestamp& end);

// Records nothing during its lifetime, or, given a name, only one span of that name in the lane
// "phase".
class Untraced {
public:
    explicit Untraced(std::string name = "");
    ~Untraced();
    Untraced(const Untraced&) = delete;

private:
    const std::string name_;
    const double begin_ = now_seconds();
    const bool recording_ = trace_recording();
};

// Names what this thread's work is for, from construction to destruction. Names nest. Inside
//     TraceName unit(TraceName::part, "layers.3"), pass(TraceName::pass, "backward");
//     TraceName linear(TraceName::part, "mlp.down_proj"), product(TraceName::pass, "dX");
// a product is recorded as "matmul layers.3.mlp.down_proj dX". Nested parts are joined with dots;
// of nested passes, the innermost counts. `whole` starts a new name: a hook's communication does
// not belong to the layer whose backward called the hook. The name must outlive the object. Does
// nothing while nothing is recorded.
class TraceName {
public:
    enum Kind { part, pass, whole };
    // `number` follows the name: "bucket 2".
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
std::string trace_name();  // for the work issued now

// Where this thread's work stands: its innermost name, and the lane of its sections and phases.
// Code that goes on with other work, and comes back to its own, exchanges it (train/interleave.h).
struct TracePlace {
    const TraceName* innermost = nullptr;
    const char* lane = "phase";
};
TracePlace trace_place();
void set_trace_place(const TracePlace& place);

struct OpenSpan {
    Span span;
    Timestamp begin;
};

// A span on the compute stream from construction to destruction, timed by the device's own clock;
// every operation of ops.h opens one. `flops` counts multiplications and additions, `bytes` each
// input read once and each output written once. It is also a named range for NVIDIA's profilers
// (NVTX). The names are copied, and only while recording.
class OpSpan {
public:
    OpSpan(std::string_view name, double flops, double bytes, std::string_view lane = "compute");
    ~OpSpan();
    OpSpan(const OpSpan&) = delete;

private:
    std::optional<OpenSpan> open_;  // empty while nothing is recorded
};

// A span in the lane "phase" (TracePlace) for a section of a step; it encloses the operations that
// run in it. Does nothing unless recording.
class SectionSpan {
public:
    SectionSpan(std::string_view name, int64_t number);  // "step 3"
    SectionSpan();                                       // named trace_name(): "layers.3 backward"
    ~SectionSpan() { end(); }
    SectionSpan(const SectionSpan&) = delete;
    void end();

private:
    std::optional<OpenSpan> open_;
};

// Runs `work` as a span in the lane "phase" (TracePlace). Operations in it that belong to no unit
// of the model carry its name.
template <class F>
auto phase(std::string_view name, F work) {
    OpSpan span(name, 0, 0, trace_place().lane);
    const TraceName what(TraceName::pass, name);
    return work();
}

// --explain: while enabled, explain() prints its line with a running number. Only rank 0 enables
// it.
void explain_enable(bool on);
bool explain_enabled();
void explain(std::string_view line);

}  // namespace ultrascale
