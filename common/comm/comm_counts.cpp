// Counts what this rank communicates, computes it by formula, and collects the times of its calls.
#include <algorithm>
#include <mutex>

#include "comm_transport.h"
#include "core/trace.h"

namespace ultrascale {

double bytes_sent(Collective kind, double bytes, int ranks, bool is_root) {
    const double n = ranks, rest = (n - 1) / n * bytes;  // all but one slice
    switch (kind) {
        case Collective::all_reduce: return 2 * rest;
        case Collective::all_gather:
        case Collective::reduce_scatter:
        case Collective::all_to_all: return rest;
        case Collective::send_recv: return bytes;
        case Collective::broadcast: return is_root ? n * rest : 0;
        case Collective::scatter: return is_root ? rest : 0;
        case Collective::reduce: return is_root ? rest : n > 1 ? bytes : 0;
        case Collective::gather: return is_root ? 0 : bytes / n;
        case Collective::barrier: return 0;
    }
    return 0;
}

static std::mutex counts_mutex;
static CommunicationCounts counts;  // under the mutex
static std::vector<Measurement>
    measurements;  // under the mutex: times not yet read from the device

CommunicationCount& CommunicationCount::operator+=(const CommunicationCount& more) {
    calls += more.calls, bytes += more.bytes, sent += more.sent;
    seconds += more.seconds, exposed += more.exposed;
    return *this;
}

CommunicationCount& CommunicationCount::operator-=(const CommunicationCount& less) {
    calls -= less.calls, bytes -= less.bytes, sent -= less.sent;
    seconds -= less.seconds, exposed -= less.exposed;
    return *this;
}

CommunicationCount CommunicationCounts::operator[](size_t kind) const {
    CommunicationCount sum;
    for (const auto& [name, kinds] : groups) sum += kinds[kind];
    return sum;
}

double bytes_sent_in_all(const CommunicationCounts& counts) {
    double sum = 0;
    for (const auto& [name, kinds] : counts.groups)
        for (const CommunicationCount& count : kinds) sum += count.sent;
    return sum;
}

void add_count(const std::string& group, Collective kind, const CommunicationCount& more) {
    std::lock_guard lock(counts_mutex);
    counts.groups[group][size_t(kind)] += more;
}

static void resolve(const std::vector<Measurement>& all) {
    for (const Measurement& m : all) {
        double begin = m.begin.seconds(), end = std::max(begin, m.end.seconds());
        add_count(
            m.group, m.kind,
            {.seconds = m.only_exposed ? 0 : end - begin, .exposed = m.exposed ? end - begin : 0});
        if (m.span) trace_span(*m.span, begin, end);
    }
}

// In a program that never asks for the counts, the list would grow without bound. When it is full,
// the older half, which has finished long ago, is resolved here.
void add_measurement(Measurement measurement) {
    constexpr size_t most = 8192;
    std::vector<Measurement> old;
    {
        std::lock_guard lock(counts_mutex);
        measurements.push_back(std::move(measurement));
        if (measurements.size() >= most) {
            old.assign(measurements.begin(), measurements.begin() + most / 2);
            measurements.erase(measurements.begin(), measurements.begin() + most / 2);
        }
    }
    resolve(old);
}

void resolve_communication_times() {
    std::vector<Measurement> all;
    {
        std::lock_guard lock(counts_mutex);
        all.swap(measurements);
    }
    resolve(all);
}

CommunicationCounts communication_counts() {
    resolve_communication_times();
    std::lock_guard lock(counts_mutex);
    return counts;
}

CommunicationCounts difference(const CommunicationCounts& later,
                               const CommunicationCounts& earlier) {
    CommunicationCounts d = later;
    for (const auto& [name, kinds] : earlier.groups)
        for (size_t k = 0; k < kinds.size(); ++k) d.groups[name][k] -= kinds[k];
    return d;
}

void communication_set_counts(const CommunicationCounts& to) {
    resolve_communication_times();
    std::lock_guard lock(counts_mutex);
    counts = to;
}
void communication_add_counts(const CommunicationCounts& more) {
    for (const auto& [name, kinds] : more.groups)
        for (size_t k = 0; k < kinds.size(); ++k) add_count(name, Collective(k), kinds[k]);
}
void communication_reset_counts() { communication_set_counts({}); }

}  // namespace ultrascale
