#include "trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "comm/comm.h"
#include "core/memory.h"
#include "core/trace.h"
#include "files/file.h"

namespace ultrascale {

namespace {

// Chrome's microseconds, in whole nanoseconds, so that adjacent spans do not overlap when they are
// read back.
std::string microseconds(int64_t nanoseconds) {
    return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

// This rank's events in Chrome's trace format (one JSON object per line, each with a comma at the
// end). `later` is added to their times.
std::string chrome_events(int rank, double later) {
    std::string out =
        fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"{}"}}}},)"
                    "\n",
                    rank, rank_name(rank));
    const auto nanoseconds = [later](double seconds) {
        return std::llround((seconds + later) * 1e9);
    };
    std::map<std::string, int> lanes;
    for (const Span& span : trace_spans()) {
        auto [lane, is_new] = lanes.try_emplace(span.lane, int(lanes.size()));
        if (is_new)
            out += fmt::format(
                R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}},)"
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
        for (int c = 0; c < memory_categories; ++c)
            out += fmt::format(R"({}"{}":{})", c ? "," : "", memory_names[c], point.bytes[c]);
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
    for (const std::string& rank_events : world.gather_strings(chrome_events(world.rank(), later)))
        events += rank_events;
    if (world.rank() != 0) return;
    events.erase(events.find_last_of(','));  // JSON allows no comma after the last event
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
        if (span.lane.starts_with("phase") || span.begin < since) continue;
        Sum& sum = by_name[span.name];
        ++sum.calls;
        sum.seconds += span.end - span.begin;
        sum.flops += span.flops;
        sum.bytes += span.bytes;
        all += span.end - span.begin;
    }
    std::vector<std::pair<std::string, Sum>> rows(by_name.begin(), by_name.end());
    std::sort(rows.begin(), rows.end(),
              [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
    std::string out = fmt::format("  {:<24} {:>10} {:>10} {:>7} {:>10} {:>9}\n", "operation",
                                  "calls/step", "ms/step", "share", "GFLOP/s", "GB/s");
    for (const auto& [name, sum] : rows)
        out += fmt::format("  {:<24} {:>10.1f} {:>10.3f} {:>6.1f}% {:>10.1f} {:>9.2f}\n", name,
                           double(sum.calls) / steps, sum.seconds * 1e3 / steps,
                           100 * sum.seconds / all, sum.flops / sum.seconds / 1e9,
                           sum.bytes / sum.seconds / 1e9);
    return out;
}

}  // namespace ultrascale
