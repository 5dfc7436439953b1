#include "trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <utility>

#include "comm.h"
#include "device.h"
#include "error.h"
#include "file.h"
#include "memory.h"

namespace ultrascale {
namespace {

std::mutex mutex;
std::vector<Span> spans;
bool recording = false, explaining = false;
int explained_lines = 0;

using Clock = std::chrono::steady_clock;
const Clock::time_point started = Clock::now();

thread_local const TraceName* innermost = nullptr;

// What a viewer shows: "matmul layers.3.mlp.down_proj dX".
std::string full_name(const Span& span) {
    return span.name + (span.name.empty() || span.of.empty() ? "" : " ") + span.of;
}

}  // namespace

double now_seconds() { return std::chrono::duration<double>(Clock::now() - started).count(); }
double program_start() { return std::chrono::duration<double>(started.time_since_epoch()).count(); }

void trace_record(bool on) {
    if (recording && !on) resolve_communication_times();  // what is under way still belongs to the record
    recording = on;
}
bool trace_recording() { return recording; }

// Spans whose ends the device may not have reached yet: their times are asked for when somebody reads them, since asking
// waits. In the order of their ends.
struct PendingSpan {
    Span span;
    Timestamp begin, end;
};
static std::vector<PendingSpan> pending;

const std::vector<Span>& trace_spans() {
    resolve_communication_times();
    std::lock_guard lock(mutex);
    for (PendingSpan& p : pending) {
        p.span.begin = p.begin.seconds(), p.span.end = p.end.seconds();
        spans.push_back(std::move(p.span));
    }
    pending.clear();
    return spans;
}

void trace_clear() {
    resolve_communication_times();
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
    outer_ = std::exchange(innermost, this);
}
TraceName::~TraceName() {
    if (active_) innermost = outer_;
}

std::string trace_name() {
    std::string parts;
    std::string_view pass;
    for (const TraceName* name = innermost; name; name = name->outer_) {
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

// ---- spans of the compute stream ----------------------------------------------------------------

OpSpan::OpSpan(std::string_view name, double flops, double bytes, std::string_view lane) {
    if (!recording) {
        device_range_begin(name);
        return;
    }
    open_.emplace(Span{.name = std::string(name),
                       .of = trace_name(),
                       .lane = std::string(lane),
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
        open_section(open_,
                     {.name = std::string(name), .of = std::to_string(number), .lane = "phase"});
}
SectionSpan::SectionSpan() {
    if (recording) open_section(open_, {.of = trace_name(), .lane = "phase"});
}

void SectionSpan::end() {
    if (!open_) return;
    device_range_end();
    trace_span(std::move(open_->span), open_->begin, Timestamp::in(compute_stream()));
    open_.reset();
}

// ---- the file -----------------------------------------------------------------------------------

namespace {

// Chrome's microseconds, of whole nanoseconds: spans that touch are still side by side when they
// are read back.
std::string microseconds(int64_t nanoseconds) {
    return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

// This rank's events as Chrome's trace format writes them (one JSON object a line, each ending in a
// comma). `later`: what is added to their times.
std::string chrome_events(int rank, double later) {
    std::string out = fmt::format(R"({{"ph":"M","name":"process_name","pid":{0},"args":{{"name":"rank {0}"}}}},)"
                                  "\n",
                                  rank);
    const auto nanoseconds = [later](double seconds) {
        return std::llround((seconds + later) * 1e9);
    };
    std::map<std::string, int> lanes;
    for (const Span& span : trace_spans()) {
        auto [lane, is_new] = lanes.try_emplace(span.lane, int(lanes.size()));
        if (is_new)
            out += fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}},)"
                               "\n",
                               rank, lane->second, span.lane);
        const int64_t begin = nanoseconds(span.begin);
        out += fmt::format(R"({{"ph":"X","name":"{}","pid":{},"tid":{},"ts":{},"dur":{},)",
                           full_name(span), rank, lane->second, microseconds(begin),
                           microseconds(nanoseconds(span.end) - begin));
        out += fmt::format(R"("args":{{"operation":"{}","flops":{:.0f},"bytes":{:.0f})", span.name,
                           span.flops, span.bytes);
        if (span.ranks > 0)
            out += fmt::format(R"(,"group":"{}","first_rank":{},"ranks":{},"call":{})", span.group,
                               span.first_rank, span.ranks, span.call);
        out += "}},\n";
    }
    for (const MemoryPoint& point : memory_timeline()) {
        out += fmt::format(R"({{"ph":"C","name":"memory","pid":{},"ts":{},"args":{{)", rank,
                           microseconds(nanoseconds(point.seconds)));
        for (int c = 0; c < memory_categories; ++c) out += fmt::format(R"({}"{}":{})", c ? "," : "", memory_names[c], point.bytes[c]);
        out += "}},\n";
    }
    return out;
}

}  // namespace

void trace_write(const std::string& path) {
    const Communicator& world = Communicator::world();
    const std::vector<double> offsets = world.clock_offsets();
    const double later = offsets[size_t(world.rank())] - *std::ranges::min_element(offsets);
    std::string events;
    for (const std::string& of_rank : world.gather_strings(chrome_events(world.rank(), later)))
        events += of_rank;
    if (world.rank() != 0) return;
    events.erase(events.find_last_of(','));  // JSON allows no comma after the last one
    write_file(path, "{\"traceEvents\":[\n" + events + "\n],\"displayTimeUnit\":\"ms\"}\n");
}

// ---- tables -------------------------------------------------------------------------------------

std::string profile_table(double since, double steps) {
    struct Sum {
        int64_t calls = 0;
        double seconds = 0, flops = 0, bytes = 0;
    };
    std::map<std::string, Sum> by_name;
    double all = 0;
    for (const Span& span : trace_spans()) {
        if (span.lane == "phase" || span.begin < since) continue;
        Sum& sum = by_name[span.name];
        ++sum.calls;
        sum.seconds += span.end - span.begin;
        sum.flops += span.flops;
        sum.bytes += span.bytes;
        all += span.end - span.begin;
    }
    std::vector<std::pair<std::string, Sum>> rows(by_name.begin(), by_name.end());
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
    std::string out =
        fmt::format("  {:<24} {:>10} {:>10} {:>7} {:>10} {:>9}\n", "operation", "calls/step", "ms/step", "share", "GFLOP/s", "GB/s");
    for (const auto& [name, sum] : rows)
        out +=
            fmt::format("  {:<24} {:>10.1f} {:>10.3f} {:>6.1f}% {:>10.1f} {:>9.2f}\n", name, double(sum.calls) / steps,
                        sum.seconds * 1e3 / steps, 100 * sum.seconds / all, sum.flops / sum.seconds / 1e9, sum.bytes / sum.seconds / 1e9);
    return out;
}

void explain_enable(bool on) { explaining = on; }
bool explain_enabled() { return explaining; }

void explain(std::string_view line) {
    if (!explaining || Communicator::world().rank() != 0) return;
    std::lock_guard lock(mutex);
    fmt::print("  {:>4}  {}\n", ++explained_lines, line);
}

}  // namespace ultrascale
