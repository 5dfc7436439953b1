// Private to communication: the operations that the calls of comm.h pass to the backend, and the
// functions that the backend must implement.
//
// Both backends share comm.cpp, which checks the arguments, comm_issue.cpp, which counts the calls
// and prints --explain's lines, and mpi/communicator.cpp, which creates the groups. Then an
// Operation, which consists of numbers and addresses only, goes to the transport: cpu/comm.cpp runs
// it over MPI in the stream's order (mpi/collectives.cpp); nccl/comm_nccl.cpp runs it over NCCL, or
// over MPI if there are more ranks than GPUs.
#pragma once

#include "comm/mpi/comm_mpi.h"
#include "core/trace.h"

namespace ultrascale {

struct Work::Impl {
    Collective kind;
    std::vector<Tensor> tensors;  // the arguments and scratch
    // kept alive, since a group may be dropped before its last Work
    std::shared_ptr<Communicator::Impl> communicator;
    bool asynchronous;  // not on the compute stream
    Event finished;
    int exceptions = std::uncaught_exceptions();  // in flight when the call was made
    Timestamp end;                                // CUDA: when the call has run
    std::shared_ptr<const Span> span;  // for the trace, without its times; nullptr: not recorded
    struct Staged;
    std::shared_ptr<Staged> staged;  // CUDA: an unfinished transfer through the host
    struct Unsummed;
    std::shared_ptr<Unsummed> unsummed;  // CUDA: a reduction by copies that is not yet summed
};

// Adds to communication_counts() for a call in the group of this name.
void add_count(const std::string& group, Collective kind, const CommunicationCount& more);

// A communication (or with only_exposed the wait for one) whose times the host has not yet read
// from the device.
struct Measurement {
    std::string group;  // its name
    Collective kind;
    Timestamp begin, end;
    bool exposed, only_exposed;
    std::shared_ptr<const Span> span;  // for the trace
};
void add_measurement(Measurement measurement);

// A write of an imagined operation: `bytes` from `from`, or zeros if `from` is null.
struct ImaginedCopy {
    char* to;
    const char* from;
    int64_t bytes;
};
std::vector<ImaginedCopy> imagined_copies(const Operation& operation,
                                          const Communicator::Impl& group);

namespace transport {

// All ranks of a group call it once: world before it first communicates, other groups when they are
// created.
void open(Communicator::Impl& group);

std::shared_ptr<Allocator> symmetric_memory(const Communicator::Impl& group);  // comm.h
int64_t open_mailbox(Communicator::Impl& group, int64_t bytes);                // likewise

// Allocates the operation's scratch when the call is made, because memory is counted in the host's
// order.
Tensor scratch(const Communicator::Impl& group, Operation& operation);

// Queues the operation on the stream, after its inputs, and sets work.finished. `tag` is the call's
// tag.
void start(Work::Impl& work, Operation operation, int tag, Stream& stream);

// Does the same for a group whose other ranks are imagined: copies this rank's own numbers to where
// the operation would put them, writes zeros for the others', and lasts `seconds`.
void imagine(Work::Impl& work, Operation operation, double seconds, Stream& stream);

void wait(Work::Impl& work);  // Work::wait()
bool done(Work::Impl& work);

void close();     // all ranks, after all communication
bool over_mpi();  // then reductions over several ranks add in rank order, in mpi/exchange.cpp

}  // namespace transport

}  // namespace ultrascale
