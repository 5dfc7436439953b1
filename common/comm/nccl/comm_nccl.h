// Private to the CUDA backend's communication.
#pragma once

#include <nccl.h>

#include "comm/comm_transport.h"
#include "cuda/cuda_common.h"

namespace ultrascale {

class PeerMemory;

// A group's NCCL communicator. It is kept until finalize_communication(), because destroying it
// waits for the other ranks.
struct Communicator::Impl::Link {
    std::string name;  // of the group
    ncclComm_t nccl = nullptr;
    std::shared_ptr<PeerMemory> peers;  // null where the ranks cannot map each other's memory
};

// Throws NCCL's error message, with the group's name, unless `result` is ncclSuccess. Throws a
// PeerError if NCCL blames another rank or the network.
void nccl_check(ncclResult_t result, const Communicator::Impl::Link& link);

// All of this process's communicators, which a thread watches for errors. comm_links.cpp
namespace links {
void add(std::shared_ptr<Communicator::Impl::Link> link);
void close();  // in the order of their creation, which is the same on all ranks
}  // namespace links

// The stream on which a rank's slices for itself are copied while those for others travel.
Stream& own_slices();

// For simulated nodes: the stream waits until this rank's network card is free and has then worked
// for `seconds`. slow_link.cu
void wait_for_slow_link(double seconds, cudaStream_t stream);
void wait_in_stream(double seconds, cudaStream_t stream);

// Communication of ranks that share a GPU: copies to the host, MPI, copies back. comm_staged.cpp
namespace staged {
void start(Work::Impl& work, const Operation& operation, int tag, Stream& stream);
void finish(Work::Impl& work);  // waits for a send_recv that start() left in flight
bool done(const Work::Impl& work);
}  // namespace staged

}  // namespace ultrascale
