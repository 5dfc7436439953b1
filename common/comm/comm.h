// Communication between ranks: collectives and point-to-point messages, over MPI on the CPU, and
// over NCCL and copy engines on CUDA.
//
// Every call returns a Work, which owns the call's tensors until it has been waited for. A Work
// that is dropped waits immediately, so
//     world.all_reduce(x);
// blocks like a plain call, and
//     Work work = world.all_reduce(x, Reduce::sum, communication_stream());
//     ...
//     work.wait();
// runs concurrently with the compute stream until work.wait().
//
// A Work that is dropped while an exception unwinds the stack does not wait, because the other
// ranks may never make the matching call. Its tensors are then kept, and all other communication of
// this process fails instead of waiting. A call on a stream other than compute first waits for the
// work queued on compute so far, which produces its inputs. All ranks of a communicator make the
// same calls in the same order; each call may use a different stream.
//
// On the CPU every collective reduces in rank order 0..n-1, so reduce, all_reduce and
// reduce_scatter give the same bits. The dtypes are fp32, fp64, bf16, fp16, e4m3, e5m2 and int32.
// The narrow floats are summed and averaged in fp32 and rounded once at the end (e4m3 and e5m2
// saturate). int32 is summed in 64 bits; its average truncates towards zero. A maximum with a NaN
// is NaN.
//
// On CUDA each rank needs a GPU of its own. NCCL's order of reduction depends on the collective,
// the size and the machine. It rounds the narrow floats at every step, and int32 wraps around at 32
// bits; a NaN in a maximum and an average of int32 have no defined result. Between GPUs of one
// machine, copy engines run large reduce-scatters, and all-gathers, all-reduces and all-to-alls in
// symmetric memory (nccl/comm_copies.h); their sums follow the CPU's rules. With more ranks than
// GPUs all communication goes through the host (rank 0 prints that once) by the CPU's rules, which
// is correct but slow. A collective then runs during its call, whichever stream it was issued on.
//
// NCCL runs the calls of a communicator one after another, whatever their streams. So two ranks
// that each queue a recv on one stream and a send on another deadlock, unless each direction has
// its own communicator or one send_recv contains both. All ranks must also make the calls on
// several communicators in the same order. A rank's messages to itself must be in one call.
//
// Only the number of elements matters, not the shape; a wrong number or a rank that does not exist
// fails check(). What a call sends, and what was sent so far: comm_counts.h.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm_counts.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace ultrascale {

enum class Reduce { sum, max, average };

class Work {
public:
    Work() = default;  // nothing to wait for
    Work(Work&&) = default;
    Work& operator=(Work&& other);  // waits for the work it replaces
    ~Work();                        // waits
    void wait();        // compute_stream() waits (stream.h); then the tensors are released
    bool done() const;  // never blocks
    struct Impl;
    explicit Work(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

private:
    std::shared_ptr<Impl> impl_;
};

// One message of a grouped send/recv, in one direction.
struct Transfer {
    enum Direction { send, recv } direction;
    Tensor tensor;
    int peer;
};

// Identifies this machine, or rather its steady clock, which its processes share; "": unknown.
std::string this_machine();

class Communicator {
public:
    // All ranks. The first call initialises MPI (MPI_THREAD_MULTIPLE) and must come before the
    // first tensor, because it decides which GPU this rank uses. NCCL starts later, at the first
    // barrier, split, use of symmetric memory or communication of a tensor, in which all ranks take
    // part (wrong options are refused before that).
    static Communicator& world();
    // Ranks with the same color form a group, ordered by key (equal keys: by rank). All ranks of
    // this communicator call it. `name` is the group's name in --explain and the report ("dp",
    // "tp").
    Communicator split(int color, int key, std::string name) const;
    // Creates the group without communication: the caller knows its size and this rank's index in
    // it.
    Communicator split(int color, int key, std::string name, int ranks, int rank) const;
    // The same ranks as a group that only hosts use (gather_strings to wait_asleep_for), without
    // NCCL, in another thread if need be. All ranks of this communicator call it.
    Communicator between_hosts(std::string name) const;
    // Rank `rank` of a group of `ranks` ranks whose others do not exist. It communicates alone: a
    // call is counted and lasts as long as imagine_links() says, but it brings this rank's own
    // numbers, and zeros from its peers. It can only be split into groups that the caller knows.
    static Communicator imagined(std::string name, int ranks, int rank);
    bool is_imagined() const;

    int rank() const;
    int size() const;
    const std::string& name() const;

    // An allocator (for Tensor::empty and zeros) of symmetric memory, which the ranks of this group
    // map into each other's address spaces. All-gathers and all-reduces on such tensors use copy
    // engines, and so do the hops of a ring and all-to-alls with all counts; everything also works
    // without it. All ranks of the group must create such tensors in the same order and with the
    // same sizes, and free them in the same order, so that a tensor's blocks on all ranks
    // correspond. Returns nullptr, which means the device's own memory, if GPUs cannot access each
    // other, between simulated nodes, and on the CPU.
    std::shared_ptr<Allocator> symmetric_memory() const;
    // Opens a mailbox in symmetric memory; all ranks of the group call it, once. From then on copy
    // engines carry single messages (send or recv) of up to `bytes` bytes through it, so a receive
    // can be posted long before its message comes and occupies no multiprocessor (nccl/mailbox.h).
    // But a kernel should not be launched for the first time while a receive is pending: CUDA loads
    // it then, and may wait for all streams. Returns the communication memory that this rank holds
    // for the mailbox from now on: (size() - 1) times `bytes`. Returns 0 if there is no symmetric
    // memory; messages then go as before.
    int64_t open_mailbox(int64_t bytes) const;

    // In-place calls: all_gather's and gather's `in` may be this rank's slice of `out`,
    // reduce_scatter's and scatter's `out` this rank's slice of `in`. Any other overlap fails
    // check().

    // x becomes the reduction of all ranks' x (reduce: on root only; elsewhere x stays unchanged).
    Work all_reduce(Tensor x, Reduce op = Reduce::sum, Stream& stream = compute_stream()) const;
    Work reduce(Tensor x, int root, Reduce op = Reduce::sum,
                Stream& stream = compute_stream()) const;
    // x becomes root's x.
    Work broadcast(Tensor x, int root, Stream& stream = compute_stream()) const;
    // out (n * in.numel()): all ranks' `in` in rank order. gather: on root only; other ranks' `out`
    // is ignored.
    Work all_gather(Tensor out, Tensor in, Stream& stream = compute_stream()) const;
    Work gather(Tensor out, Tensor in, int root, Stream& stream = compute_stream()) const;
    // out: this rank's slice of the reduction of `in` (n * out.numel()). scatter: its slice of
    // root's `in`.
    Work reduce_scatter(Tensor out, Tensor in, Reduce op = Reduce::sum,
                        Stream& stream = compute_stream()) const;
    Work scatter(Tensor out, Tensor in, int root, Stream& stream = compute_stream()) const;
    // Slice i of `in` goes to rank i; out receives the slices for this rank in rank order. Counts
    // are in elements and may differ (send_counts[i] here equals recv_counts[this rank] on rank i);
    // without counts all slices are equal.
    Work all_to_all(Tensor out, Tensor in, Stream& stream = compute_stream()) const;
    Work all_to_all(Tensor out, Tensor in, std::vector<int64_t> send_counts,
                    std::vector<int64_t> recv_counts, Stream& stream = compute_stream()) const;
    // For ranks that know all counts: counts[from * n + to], the same on all ranks. If all ranks'
    // `out` begin at the same place of symmetric memory, copy engines do the writing.
    Work all_to_all(Tensor out, Tensor in, const std::vector<int64_t>& counts,
                    Stream& stream = compute_stream()) const;
    // All transfers progress together, so a ring does not deadlock. The k-th send from a to b
    // matches the k-th recv on b from a. A call blocks its stream until its peers have made their
    // calls: two ranks that each queue send and then recv may deadlock. If all receive into
    // symmetric memory, all ranks must make the same call with other peers, like the hops of a
    // ring: a rank's i-th message arrives at its peer's i-th receive.
    Work send_recv(std::vector<Transfer> transfers, Stream& stream = compute_stream()) const;
    Work send(Tensor x, int to, Stream& stream = compute_stream()) const;
    Work recv(Tensor x, int from, Stream& stream = compute_stream()) const;
    // Return all ranks' strings, of any length, in rank order, and root's. Run between hosts: no
    // device is involved, and nothing is counted.
    std::vector<std::string> gather_strings(const std::string& mine) const;
    std::string broadcast_string(const std::string& root_string, int root) const;
    // Messages from and to host memory. Nothing is counted, and a wait that is not short sleeps.
    void send_from_host(const void* data, int64_t bytes, int to) const;
    void recv_on_host(void* data, int64_t bytes, int from) const;
    // The seconds to add to each rank's now_seconds() (trace.h) to get rank 0's. They are exact
    // between ranks of one machine, which share a clock, and measured between machines
    // (mpi/clock.cpp). Runs between hosts, like the two functions above.
    std::vector<double> clock_offsets(const std::string& machine = this_machine()) const;
    void barrier() const;  // the host waits for all ranks; it does not wait for its own device
    // Returns when root has called it, too; on root immediately. Every other wait here spins and
    // yields, which is fastest. This one sleeps and checks once a millisecond, so it leaves the
    // cores to a root that computes for a long time. Nothing is counted.
    void wait_asleep_for(int root) const;

    struct Impl;

private:
    explicit Communicator(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
    std::shared_ptr<Impl> impl_;
};

// The largest value of all ranks, and whether `ok` is true on all ranks. All ranks call them.
double largest_of_ranks(const Communicator& ranks, double value);
bool on_all_ranks(const Communicator& ranks, bool ok);

// For a program's end after an error. all_ranks_arrive: whether all ranks call it within `seconds`;
// it never hangs. rank_prefix: "rank 1: " for a message from one of several ranks; empty with a
// single rank, or before world() was called. rank_name: "rank 1", or "rank 1 on HOST" if the ranks
// are on several machines.
bool all_ranks_arrive(double seconds);
std::string rank_name(int rank);
std::string rank_prefix();

// Sets how long a call in a group of imagined ranks lasts. The function is given the group's name,
// the kind of call, the tensor's bytes and the number of ranks. By default such calls take no time.
using ImaginedSeconds =
    std::function<double(const std::string& group, Collective kind, double bytes, int ranks)>;
void imagine_links(ImaginedSeconds seconds);

// How many ranks share this machine; 1 before world() was called. Never waits.
int ranks_on_this_node();
int rank_on_this_node();  // this rank's index among them; 0 before world() was called
// Simulates a cluster on one machine: from now on the ranks r of world() with equal r /
// ranks_per_node form a node, and messages between nodes are slowed down as if each rank had a
// network card of this rate (mpi/slow_links.h), and arrive `hop_seconds` later than their bytes
// take. Nothing else changes. All ranks call it while no communication is in progress.
void pretend_nodes(int ranks_per_node, double gbit_per_second, double hop_seconds = 0);
// Lets a wait for messages over MPI that lasts longer than 0.2 ms sleep for this long between two
// checks (0, the default: it spins and yields). It is meant for ranks that share processors and
// wait long for each other, as in a pipeline: threads that spin keep the awaited rank from
// computing.
void let_waits_sleep(double seconds);
// Until the next call, a wait for others of more than `seconds` (0: any), or `host_seconds` in a
// message from host memory, ends the job (Exit::peer); each rank says for whom it waits, in which
// call. With NCCL the time since this call counts, and only `in_step`.
void limit_waits(double seconds, double host_seconds, bool in_step);
// Whether several ranks share a GPU, so that the host passes on what they send (CUDA).
bool communication_through_host();
// Whether copy engines may be used for communication (CUDA; true by default). All ranks call it
// before the first communication.
void use_copy_engines(bool use);
// All ranks call it as a program's last call. Does nothing if world() was never called.
void finalize_communication();
// Ends the job from one rank, without the others' help and without destructors. Given an error, it
// first prints the message, and ends with Exit::peer for a PeerError, else with Exit::bug.
[[noreturn]] void abort_all_ranks(int exit_code);
[[noreturn]] void abort_all_ranks(const std::exception& error);

}  // namespace ultrascale
