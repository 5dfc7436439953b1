#include "trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>

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

const auto program_start = std::chrono::steady_clock::now();

}  // namespace

double now_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now() - program_start).count(); }

void trace_record(bool on) {
    if (recording && !on) resolve_communication_times();  // what is under way still belongs to the record
    recording = on;
}
bool trace_recording() { return recording; }

// Spans whose ends the device may not have reached yet: their times are asked for when somebody reads them, since asking
// waits. In the order of their ends.
struct PendingSpan {
    const char* name;
    std::string lane;
    Timestamp begin, end;
    double flops, bytes;
};
static std::vector<PendingSpan> pending;

const std::vector<Span>& trace_spans() {
    resolve_communication_times();
    std::lock_guard lock(mutex);
    for (const PendingSpan& p : pending) spans.push_back({p.name, p.lane, p.begin.seconds(), p.end.seconds(), p.flops, p.bytes});
    pending.clear();
    return spans;
}

void trace_clear() {
    resolve_communication_times();
    std::lock_guard lock(mutex);
    pending.clear();
    spans.clear();
}

void trace_span(std::string_view name, std::string_view lane, double begin, double end, double flops, double bytes) {
    if (!recording) return;
    std::lock_guard lock(mutex);
    spans.push_back({std::string(name), std::string(lane), begin, end, flops, bytes});
}

void trace_span(const char* name, const std::string& lane, const Timestamp& begin, const Timestamp& end, double bytes) {
    if (!recording) return;
    std::lock_guard lock(mutex);
    pending.push_back({name, lane, begin, end, 0, bytes});
}

OpSpan::OpSpan(const char* name, double flops, double bytes, const char* lane)
    : name_(name), lane_(lane), flops_(flops), bytes_(bytes), recorded_(recording) {
    device_range_begin(name);
    if (recorded_) begin_ = Timestamp::in(compute_stream());
}

OpSpan::~OpSpan() {
    device_range_end();
    if (!recorded_) return;
    Timestamp end = Timestamp::in(compute_stream());
    std::lock_guard lock(mutex);
    pending.push_back({name_, lane_, begin_, end, flops_, bytes_});
}

namespace {

// This rank's events as Chrome's trace format writes them (one JSON object a line, each ending in a comma).
std::string chrome_events(int rank) {
    std::string out = fmt::format(R"({{"ph":"M","name":"process_name","pid":{0},"args":{{"name":"rank {0}"}}}},)"
                                  "\n",
                                  rank);
    std::map<std::string, int> lanes;
    for (const Span& span : trace_spans()) {
        auto [lane, is_new] = lanes.try_emplace(span.lane, int(lanes.size()));
        if (is_new)
            out += fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}},)"
                               "\n",
                               rank, lane->second, span.lane);
        out +=
            fmt::format(R"({{"ph":"X","name":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"flops":{:.0f},"bytes":{:.0f}}}}},)"
                        "\n",
                        span.name, rank, lane->second, span.begin * 1e6, (span.end - span.begin) * 1e6, span.flops, span.bytes);
    }
    for (const MemoryPoint& point : memory_timeline()) {
        out += fmt::format(R"({{"ph":"C","name":"memory","pid":{},"ts":{:.3f},"args":{{)", rank, point.seconds * 1e6);
        for (int c = 0; c < memory_categories; ++c) out += fmt::format(R"({}"{}":{})", c ? "," : "", memory_names[c], point.bytes[c]);
        out += "}},\n";
    }
    return out;
}

}  // namespace

void trace_write(const std::string& path) {
    const Communicator& world = Communicator::world();
    std::string events;
    for (const std::string& of_rank : world.gather_strings(chrome_events(world.rank()))) events += of_rank;
    if (world.rank() != 0) return;
    events.erase(events.find_last_of(','));  // JSON allows no comma after the last one
    write_file(path, "{\"traceEvents\":[\n" + events + "\n],\"displayTimeUnit\":\"ms\"}\n");
}

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
