// The kinds of calls that communicate (comm.h), the bytes that each of them sends, by formula, and
// how many of them this rank has made.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

namespace ultrascale {

enum class Collective {
    all_reduce,
    reduce,
    broadcast,
    all_gather,
    reduce_scatter,
    gather,
    scatter,
    all_to_all,
    send_recv,
    barrier
};
inline constexpr int collective_kinds = 10;
inline constexpr std::array<const char*, collective_kinds> collective_names = {
    "all-reduce", "reduce",  "broadcast",  "all-gather", "reduce-scatter",
    "gather",     "scatter", "all-to-all", "send/recv",  "barrier"};

// The bytes that this rank sends in calls on tensors of S bytes in total, over n ranks, by the
// algorithm's formula:
//
//     all-reduce                               2 (n-1)/n S     a ring: a reduce-scatter, then an
//                                                              all-gather
//     all-gather, reduce-scatter, all-to-all     (n-1)/n S     all but the own slice
//     send/recv                                          S
//     broadcast, scatter    the root sends (n-1) S, (n-1)/n S; the others nothing
//     reduce                the root sends (n-1)/n S, the others S: a reduce-scatter, then to the
//                           root
//     gather                the root sends nothing, the others S/n
//
// S is the size of the full tensor: the gathered output of all-gather and gather, the input of the
// others, as in nccl-tests (doc/PERFORMANCE.md in NVIDIA/nccl-tests). Our own transports send
// exactly as many bytes (comm_sent_test.cpp counts them), with two exceptions: over MPI an
// all-reduce of up to 4 KiB takes one round instead of two, in which every rank sends (n-1) S, and
// slices differ by an element if n does not divide the number of elements. NCCL chooses its
// algorithm itself; its broadcast goes along a ring.
double bytes_sent(Collective kind, double bytes, int ranks, bool is_root = false);

// What this rank has communicated since the last reset. `bytes` is the tensors' size (S above),
// `sent` the bytes that this rank sends by the formula. `seconds` is the time from the first to the
// last message, including the wait for other ranks to arrive; `exposed` is how long the call, or
// the wait for it, blocked compute. Calls and bytes are counted when the call is made, `seconds`
// when it has run, and `exposed` when it has been waited for. On CUDA the GPU measures the times,
// and reading or resetting the counts waits for all calls so far; nothing waits for measurements
// during a step.
struct CommunicationCount {
    int64_t calls = 0, bytes = 0;
    double sent = 0, seconds = 0, exposed = 0;
    CommunicationCount& operator+=(const CommunicationCount& more);
    CommunicationCount& operator-=(const CommunicationCount& less);
};
// Indexed by the name of the calls' group and by kind.
struct CommunicationCounts {
    using Kinds = std::array<CommunicationCount, collective_kinds>;
    std::map<std::string, Kinds> groups;
    CommunicationCount operator[](size_t kind) const;  // of all groups together
};
// The sum over all groups and kinds of calls.
double bytes_sent_in_all(const CommunicationCounts& counts);
CommunicationCounts communication_counts();
void communication_set_counts(const CommunicationCounts& counts);
void communication_add_counts(const CommunicationCounts& more);
CommunicationCounts difference(const CommunicationCounts& later,
                               const CommunicationCounts& earlier);
void communication_reset_counts();
// Waits for the times of all calls so far and passes their spans to the trace. Does nothing on the
// CPU.
void resolve_communication_times();

}  // namespace ultrascale
