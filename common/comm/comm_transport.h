// Private to communication: what comm.h's calls hand to the backend, and what the backend must
// provide.
//
// comm.cpp checks the arguments, counts and explains; mpi/communicator.cpp makes the groups; both
// serve both backends. Then an Operation, which is nothing but numbers and addresses, goes to the
// transport: cpu/comm.cpp runs it over MPI in the stream's order (mpi/collectives.cpp);
// nccl/comm_nccl.cpp runs it over NCCL, or with more ranks than GPUs over MPI too.
#pragma once

#include "comm/mpi/comm_mpi.h"
#include "core/trace.h"

namespace ultrascale {

struct Work::Impl {
    Collective kind;
    std::vector<Tensor> tensors;                       // the arguments and scratch
    // a group may be dropped before its last Work
    std::shared_ptr<Communicator::Impl> communicator;
    bool asynchronous;                                 // not on the compute stream
    Event finished;
    int exceptions = std::uncaught_exceptions();  // on their way when the call was made
    Timestamp end;                                // CUDA: when it has run
    std::shared_ptr<const Span> span;  // of the trace, but for its times; none: nothing is recorded
    struct Staged;
    std::shared_ptr<Staged> staged;  // CUDA: a transfer through the host that is under way
    struct Unsummed;
    std::shared_ptr<Unsummed> unsummed;  // CUDA: a reduction by copies whose sum is still to come
};

// Adds to communication_counts(), for a call in the group of this name.
void add_count(const std::string& group, Collective kind, const CommunicationCount& more);

// A communication (or with only_exposed the wait for one) whose times the device knows but not yet
// the host.
struct Measurement {
    std::string group;  // its name
    Collective kind;
    Timestamp begin, end;
    bool exposed, only_exposed;
    std::shared_ptr<const Span> span;  // likewise
};
void add_measurement(Measurement measurement);

namespace transport {

// All ranks of a group call it once: world before it first communicates, the others when they are
// made.
void open(Communicator::Impl& group);

std::shared_ptr<Allocator> symmetric_memory(const Communicator::Impl& group);  // comm.h

// Reserves what the operation needs before it is counted: memory is counted in the host's order.
Tensor scratch(const Communicator::Impl& group, Operation& operation);

// Queues the operation on the stream, after its inputs, and sets work.finished. `tag` is that of
// the call.
void start(Work::Impl& work, Operation operation, int tag, Stream& stream);

void wait(Work::Impl& work);  // Work::wait()
bool done(Work::Impl& work);

void close();     // all ranks: nothing will be communicated any more
bool over_mpi();  // reductions of more than one rank add in rank order, by mpi/exchange.cpp

}  // namespace transport

}  // namespace ultrascale
