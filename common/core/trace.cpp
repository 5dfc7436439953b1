#include "trace.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <mutex>
#include <utility>

#include "device.h"

namespace ultrascale {
namespace {

std::mutex mutex;
std::vector<Span> spans;
bool recording = false, explaining = false;
int explained_lines = 0;
void (*complete)() = nullptr;
void complete_spans() {
    if (complete) complete();
}

using Clock = std::chrono::steady_clock;
const Clock::time_point started = Clock::now();

thread_local const TraceName* innermost_name = nullptr;

}  // namespace

std::string full_name(const Span& span) {
    return span.name + (span.name.empty() || span.of.empty() ? "" : " ") + span.of;
}

double now_seconds() { return std::chrono::duration<double>(Clock::now() - started).count(); }
double program_start() { return std::chrono::duration<double>(started.time_since_epoch()).count(); }

void trace_record(bool on) {
    if (recording && !on)
        complete_spans();  // unfinished communication still belongs to the
                           // recording
    recording = on;
}
bool trace_recording() { return recording; }

Untraced::Untraced(std::string name) : name_(std::move(name)) { trace_record(false); }
Untraced::~Untraced() {
    trace_record(recording_);
    if (recording_ && !name_.empty())
        trace_span({.name = name_, .lane = "phase"}, begin_, now_seconds());
}
void trace_complete_with(void (*function)()) { complete = function; }

// Spans whose ends the device may not have reached yet, in the order of their ends. Their times are
// asked for only when somebody reads them, because asking waits.
struct PendingSpan {
    Span span;
    Timestamp begin, end;
};
static std::vector<PendingSpan> pending;

const std::vector<Span>& trace_spans() {
    complete_spans();
    std::lock_guard lock(mutex);
    for (PendingSpan& p : pending) {
        p.span.begin = p.begin.seconds(), p.span.end = p.end.seconds();
        spans.push_back(std::move(p.span));
    }
    pending.clear();
    return spans;
}

void trace_clear() {
    complete_spans();
    std::lock_guard lock(mutex);
    pending.clear();
    spans.clear();
}

void trace_span(Span span, double begin, double end) {
    span.begin = begin, span.end = end;
    std::lock_guard lock(mutex);
    spans.push_back(std::move(span));
}

void trace_span(Span span, const Timestamp& begin, const Timestamp& end) {
    std::lock_guard lock(mutex);
    pending.push_back({std::move(span), begin, end});
}

// ---- names --------------------------------------------------------------------------------------

TraceName::TraceName(Kind kind, std::string_view name, int64_t number) : active_(recording) {
    if (!active_) return;
    name_ = name, number_ = number, kind_ = kind;
    outer_ = std::exchange(innermost_name, this);
}
TraceName::~TraceName() {
    if (active_) innermost_name = outer_;
}
const TraceName* TraceName::innermost() { return innermost_name; }
void TraceName::set_innermost(const TraceName* name) { innermost_name = name; }

std::string trace_name() {
    std::string parts;
    std::string_view pass;
    for (const TraceName* name = innermost_name; name; name = name->outer_) {
        if (name->kind_ == TraceName::lane) continue;
        if (name->kind_ == TraceName::pass) {
            if (pass.empty()) pass = name->name_;
            continue;
        }
        std::string part(name->name_);
        if (name->number_ >= 0) part += fmt::format(" {}", name->number_);
        parts = parts.empty() ? part : part + "." + parts;
        if (name->kind_ == TraceName::whole) break;
    }
    return fmt::format("{}{}{}", parts, parts.empty() || pass.empty() ? "" : " ", pass);
}

std::string phase_lane() {
    for (const TraceName* name = innermost_name; name; name = name->outer_)
        if (name->kind_ == TraceName::lane) return std::string(name->name_);
    return "phase";
}

// ---- spans of the compute stream ----------------------------------------------------------------

OpSpan::OpSpan(std::string_view name, double flops, double bytes, std::string_view lane) {
    if (!recording) {
        device_range_begin(name);
        return;
    }
    open_.emplace(Span{.name = std::string(name),
                       .of = trace_name(),
                       .lane = lane == "phase" ? phase_lane() : std::string(lane),
                       .flops = flops,
                       .bytes = bytes});
    device_range_begin(full_name(open_->span));
    open_->begin = Timestamp::in(compute_stream());
}

OpSpan::~OpSpan() {
    device_range_end();
    if (open_) trace_span(std::move(open_->span), open_->begin, Timestamp::in(compute_stream()));
}

static void open_section(std::optional<OpenSpan>& section, Span span) {
    device_range_begin(full_name(span));
    section.emplace(std::move(span), Timestamp::in(compute_stream()));
}

SectionSpan::SectionSpan(std::string_view name, int64_t number) {
    if (recording)
        open_section(
            open_, {.name = std::string(name), .of = std::to_string(number), .lane = phase_lane()});
}
SectionSpan::SectionSpan() {
    if (recording) open_section(open_, {.of = trace_name(), .lane = phase_lane()});
}

void SectionSpan::end() {
    if (!open_) return;
    device_range_end();
    trace_span(std::move(open_->span), open_->begin, Timestamp::in(compute_stream()));
    open_.reset();
}

void explain_enable(bool on) { explaining = on; }
bool explain_enabled() { return explaining; }

void explain(std::string_view line) {
    if (!explaining) return;
    std::lock_guard lock(mutex);
    fmt::print("  {:>4}  {}\n", ++explained_lines, line);
}

}  // namespace ultrascale
