// How ranks talk: collectives and point to point, on the CPU over MPI and on CUDA over NCCL and by
// copy engines.
//
// Every call names its tensors and returns a Work. Work owns the tensors until it has been waited
// for; a Work that is dropped waits at once, so
//     world.all_reduce(x);
// blocks as a plain call would, and
//     Work work = world.all_reduce(x, Reduce::sum, communication_stream());
//     ...
//     work.wait();
// runs while the compute stream goes on, until work.wait().
//
// While an exception unwinds the stack a dropped Work does not wait: the other ranks may never make
// the matching call. Its tensors are then kept, and all other communication of this process fails
// instead of waiting.
// A call on another stream than compute first waits for what compute has been given so far (its
// inputs are ready then). All ranks of a communicator make the same calls in the same order; which
// stream runs them may differ per call.
//
// Reductions add in rank order 0..n-1 on the CPU, whatever the collective, so reduce, all_reduce
// and reduce_scatter give the same bits. fp32, fp64, bf16, fp16 and int32; bf16 and fp16 are summed
// in fp32, averages are divided there, and the result is rounded once. int32 is summed in 64 bits;
// its average truncates towards zero. A maximum with a NaN is NaN.
//
// On CUDA each rank needs a GPU of its own, and NCCL reduces as it likes: in an order that depends
// on the collective, the size and the machine; bf16 and fp16 are rounded at every step; int32 wraps
// around at 32 bits; what it makes of a NaN in a maximum or of an average of int32 is not promised.
// Between GPUs of one machine, large reduce-scatters, and what is gathered or all-reduced in
// symmetric memory, go by copy engines instead (nccl/comm_copies.h); they add by the CPU's rules.
// With more ranks than GPUs all goes through the host (rank 0 says so once), by the CPU's rules:
// right, but slow. A collective then runs during its call, whichever stream it was given.
//
// NCCL runs the calls of a communicator one after another, on whatever streams. So two ranks that
// each queue a recv on one stream and a send on another wait forever, unless the two directions
// have a communicator each, or are one send_recv. Of several communicators the ranks make their
// calls in one order too. A rank's messages to itself must be in one call.
//
// Shapes do not matter, numbers of elements do; a wrong one, like a rank that is not there, fails
// check(). Sizes: nccl-tests' convention, doc/PERFORMANCE.md in NVIDIA/nccl-tests.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"

namespace ultrascale {

enum class Reduce { sum, max, average };

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

// The bytes that this rank sends in calls on tensors of S bytes in all, over n ranks, by the
// formula of the algorithm:
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
// others. Our own transports hand over as many bytes (comm_sent_test.cpp counts them), except that
// over MPI an all-reduce of up to 4 KiB takes one round instead of two, in which every rank sends
// (n-1) S, and that slices differ by an element where n does not divide their number. NCCL chooses
// its algorithm itself; a broadcast goes along a ring there.
double bytes_sent(Collective kind, double bytes, int ranks, bool is_root = false);

// What this rank communicated since the last reset. `bytes` are the tensors' (S above), `sent` what
// this rank sends by the formula. `seconds` is the time from the first to the last message, which
// contains waiting for other ranks to arrive; `exposed` is how long compute stood still in the call
// or in the wait for it. Calls and bytes count when the call is made, the times when it has run and
// when it has been waited for. On CUDA the times are the GPU's, and asking for the counts or
// resetting them waits for all calls so far; while a step runs nothing waits to measure it.
struct CommunicationCount {
    int64_t calls = 0, bytes = 0;
    double sent = 0, seconds = 0, exposed = 0;
    CommunicationCount& operator+=(const CommunicationCount& more);
    CommunicationCount& operator-=(const CommunicationCount& less);
};
// By the name of the group in which the calls were made, and by kind.
struct CommunicationCounts {
    using Kinds = std::array<CommunicationCount, collective_kinds>;
    std::map<std::string, Kinds> groups;
    CommunicationCount operator[](size_t kind) const;  // of all groups together
};
// In all groups and all kinds of calls together.
double bytes_sent_in_all(const CommunicationCounts& counts);
CommunicationCounts communication_counts();
void communication_set_counts(const CommunicationCounts& counts);
CommunicationCounts difference(const CommunicationCounts& later,
                               const CommunicationCounts& earlier);
void communication_reset_counts();
// The wait alone; it also hands the trace its spans. Nothing to do on the CPU.
void resolve_communication_times();

class Work {
public:
    Work() = default;  // nothing to wait for
    Work(Work&&) = default;
    Work& operator=(Work&& other);  // waits for the work it replaces
    ~Work();                        // waits
    void wait();  // compute_stream() waits (stream.h); then the tensors are let go
    bool done() const;              // never blocks
    struct Impl;
    explicit Work(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

private:
    std::shared_ptr<Impl> impl_;
};

// One transfer of a grouped send/recv: exactly one of the two directions.
struct Transfer {
    enum Direction { send, recv } direction;
    Tensor tensor;
    int peer;
};

// The name of this machine, or rather of its steady clock, which all processes that run on it read.
// Empty: nobody knows.
std::string this_machine();

class Communicator {
public:
    // All ranks; the first call initialises MPI (MPI_THREAD_MULTIPLE). It comes before the first
    // tensor: which GPU is this rank's depends on it. NCCL starts at the first barrier, split, use
    // of symmetric memory or communication of a tensor, which all ranks take part in (wrong options
    // are refused before that).
    static Communicator& world();
    // Ranks that give the same color form a group, ordered by key (equal keys: by rank). All ranks
    // of this communicator call it. `name` is the group's name in --explain and the report ("dp",
    // "tp").
    Communicator split(int color, int key, std::string name) const;

    int rank() const;
    int size() const;
    const std::string& name() const;

    // For Tensor::empty and zeros: symmetric memory, which the ranks of this group map into each
    // other's address spaces. What is gathered or all-reduced there goes by copy engines;
    // everything works without. All ranks of the group make such tensors in one order and with the
    // same sizes, and let go of them in one order, so that a tensor's blocks on all ranks belong
    // together. nullptr, which means the device's own memory, where GPUs do not reach each other,
    // between pretended nodes, and on the CPU.
    std::shared_ptr<Allocator> symmetric_memory() const;

    // In place where it makes sense: all_gather's and gather's `in` may be this rank's slice of
    // `out`, reduce_scatter's and scatter's `out` this rank's slice of `in`. Any other overlap
    // fails check().

    // x becomes the reduction of all ranks' x (reduce: on root only; elsewhere x is left as it
    // was).
    Work all_reduce(Tensor x, Reduce op = Reduce::sum, Stream& stream = compute_stream()) const;
    Work reduce(Tensor x, int root, Reduce op = Reduce::sum,
                Stream& stream = compute_stream()) const;
    // x becomes root's x.
    Work broadcast(Tensor x, int root, Stream& stream = compute_stream()) const;
    // out (n * in.numel()): all ranks' `in` in rank order. gather: on root only, `out` is not
    // looked at elsewhere.
    Work all_gather(Tensor out, Tensor in, Stream& stream = compute_stream()) const;
    Work gather(Tensor out, Tensor in, int root, Stream& stream = compute_stream()) const;
    // out: this rank's slice of the reduction of `in` (n * out.numel()). scatter: of root's `in`.
    Work reduce_scatter(Tensor out, Tensor in, Reduce op = Reduce::sum,
                        Stream& stream = compute_stream()) const;
    Work scatter(Tensor out, Tensor in, int root, Stream& stream = compute_stream()) const;
    // Slice i of `in` goes to rank i; out holds what the ranks sent to this one, in rank order.
    // Counts are in elements and may differ (send_counts[i] here equals recv_counts[this rank] on
    // rank i); without counts all slices are equal.
    Work all_to_all(Tensor out, Tensor in, Stream& stream = compute_stream()) const;
    Work all_to_all(Tensor out, Tensor in, std::vector<int64_t> send_counts,
                    std::vector<int64_t> recv_counts, Stream& stream = compute_stream()) const;
    // All transfers progress together, so a ring does not deadlock. The k-th send from a to b meets
    // the k-th recv at b from a. A call holds up its stream until the peers have come: two ranks
    // that each queue send and then recv may wait forever.
    Work send_recv(std::vector<Transfer> transfers, Stream& stream = compute_stream()) const;
    Work send(Tensor x, int to, Stream& stream = compute_stream()) const;
    Work recv(Tensor x, int from, Stream& stream = compute_stream()) const;
    // Everybody gets all ranks' texts, of any length, in rank order. Between hosts: no device is
    // involved, nothing is counted.
    std::vector<std::string> gather_strings(const std::string& mine) const;
    std::string broadcast_string(const std::string& of_root,
                                 int root) const;  // likewise: everybody gets root's
    // What must be added to each rank's now_seconds() (trace.h) to have rank 0's: exact between
    // ranks of one machine, which share its clock; measured between machines (mpi/clock.cpp).
    // Between hosts, like the two above.
    std::vector<double> clock_offsets(const std::string& machine = this_machine()) const;
    void barrier() const;  // the host waits for all ranks; it does not wait for its own device
    // Returns when root has called it, too, and on root at once. Every other wait here spins and
    // yields, which is quickest; this one sleeps and looks once a millisecond, and so leaves the
    // cores to a root that computes for long. Nothing is counted.
    void wait_asleep_for(int root) const;

    struct Impl;

private:
    explicit Communicator(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
    std::shared_ptr<Impl> impl_;
};

// The largest value that any rank has, and whether something holds on all of them. They all call
// it.
double largest_of_ranks(const Communicator& ranks, double value);
bool on_all_ranks(const Communicator& ranks, bool ok);

// For a program's end after an error. all_ranks_arrive: whether all ranks call it within so many
// seconds; it never hangs. communication_is_abandoned: a Work went down with an exception, so
// finalize_communication() is no longer possible. rank_prefix: "rank 1: " for a message that one of
// several ranks prints; empty if there is one, or before world() was called.
bool all_ranks_arrive(double seconds);
bool communication_is_abandoned();
std::string rank_prefix();

// How many ranks share this machine; 1 before world() was called. Never waits.
int ranks_on_this_node();
int rank_on_this_node();  // this rank's place among them; 0 before world() was called
// For trying out a cluster on one machine: from now on the ranks r of world() with equal r /
// ranks_per_node are a node, and what travels between nodes is slowed down to a network card of
// this rate for each rank (mpi/slow_links.h). Nothing else changes. All ranks call it, while
// nothing is under way.
void pretend_nodes(int ranks_per_node, double gbit_per_second);
// Whether copy engines may communicate (CUDA; the default is true). All ranks, before the first
// communication.
void use_copy_engines(bool use);
// All ranks; the last call of a program. Nothing to do if world() was never called.
void finalize_communication();
[[noreturn]] void abort_all_ranks(
    int exit_code);  // one rank's way out when the others cannot know; runs no destructors

}  // namespace ultrascale
