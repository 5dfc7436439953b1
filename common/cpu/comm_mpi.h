// Private to the CPU's communication: what a Communicator holds, and how messages travel.
#pragma once

#define MPICH_SKIP_MPICXX  // the C interface is enough; the old C++ one would have to be linked
#define OMPI_SKIP_MPICXX
#include <mpi.h>

#include "../comm.h"

namespace ultrascale {

struct Communicator::Impl {
    MPI_Comm mpi;
    int rank, size;
    std::string name;
    // Calls so far, counted on the host in program order, which all ranks share: they become tags, so that calls which
    // run on different streams at the same time cannot take each other's messages.
    uint64_t collectives = 0;
    std::vector<uint64_t> sends, receives;  // by peer

    Impl(MPI_Comm mpi, std::string name);
    ~Impl();
    int collective_tag() { return int(collectives++ % tags()); }
    int send_tag(int peer) { return int(tags() + sends[peer]++ % tags()); }
    int receive_tag(int peer) { return int(tags() + receives[peer]++ % tags()); }
    static uint64_t tags();  // the lower half of MPI's tags is for collectives, the upper for send/recv
};

// Where one way ends and another begins. Variable so that tests reach every path with little data; equal on all ranks.
struct CommunicationSettings {
    int64_t piece_bytes = 1 << 30;  // MPI counts with an int: longer messages travel in pieces of this size
    int64_t small_bytes = 4 << 10;  // an all-reduce or reduce up to this size takes one round
    int64_t chunk_bytes = 1 << 20;  // longer reductions go through scratch of about this size, chunk after chunk
};
CommunicationSettings& communication_settings();

// A set of messages that progress together.
//
// Waiting is a loop of MPI_Testall and sched_yield(): MPI's blocking calls spin, which with more ranks than cores keeps
// the rank one waits for off the core (8 ranks on 2 cores, MPICH 4.0.2: 24 ms for an all-reduce of one float).
class Exchange {
public:
    Exchange(MPI_Comm mpi, int rank, int size, int tag) : mpi_(mpi), rank_(rank), size_(size), tag_(tag) {}
    int rank() const { return rank_; }
    int size() const { return size_; }

    void send(const void* data, int64_t bytes, int peer) { send(data, bytes, peer, tag_); }
    void recv(void* data, int64_t bytes, int peer) { recv(data, bytes, peer, tag_); }
    void send(const void* data, int64_t bytes, int peer, int tag);
    void recv(void* data, int64_t bytes, int peer, int tag);
    void wait();  // for all of them; their sizes must be what was expected

    // Calls body(peer) for every other rank, the next one first, so that not all ranks begin with rank 0.
    template <class Body>
    void for_each_peer(Body body) const {
        for (int i = 1; i < size_; ++i) body((rank_ + i) % size_);
    }

private:
    MPI_Comm mpi_;
    int rank_, size_, tag_;
    std::vector<MPI_Request> requests_;
    std::vector<int> expected_;  // bytes of a receive; -1 for a send
    std::vector<MPI_Status> statuses_;
};

// A Work went down with an exception before its communication had ended: its ranks may never meet again. From then on
// every wait of an Exchange throws instead of hanging. (false: a test is done with it.)
void abandon_communication(bool abandoned = true);

// out[i] = reduction over r of inputs[r][i], r = 0, 1, ...; `out` may be one of the inputs.
void reduce_in_rank_order(void* out, const std::vector<const void*>& inputs, int64_t count, DType dtype, Reduce op);

// The one road every call takes: counts and explains it, then runs `body` in the stream's order. Work owns `tensors`
// (the arguments and scratch); `body` holds only their addresses.
struct Call {
    Collective kind;
    int64_t bytes;
    std::vector<Tensor> tensors;
    std::string detail = "";  // for --explain
};
Work issue(const std::shared_ptr<Communicator::Impl>& communicator, Call call, Stream& stream, std::function<void(Exchange&)> body);

}  // namespace ultrascale
