// Private to the CPU's communication: what a Communicator holds, and how messages travel.
#pragma once

#define MPICH_SKIP_MPICXX  // the C interface is enough; the old C++ one would have to be linked
#define OMPI_SKIP_MPICXX
#include <mpi.h>

#include "../comm.h"

namespace ultrascale {

// A group of ranks. Groups are ours, not MPI's: all messages travel in MPI_COMM_WORLD, and a group has a range of tags to
// itself. (MPI_Comm_split spins, like every blocking call: 100 ms for 8 ranks on 2 cores with MPICH 4.0.2; ours takes 0.05.)
//
// The range is the group's number. A split gives the lowest number that is new to each of its ranks; so two groups that have
// two ranks in common have two numbers, and groups without may share one.
//
// Within the range a call's place in the program order, which all ranks share, makes its tag, so that calls which run on
// different streams at the same time cannot take each other's messages.
struct Communicator::Impl {
    std::string name;
    std::vector<int> world_ranks;  // of the group's ranks
    int rank, number;
    uint64_t collectives = 0;               // calls so far
    std::vector<uint64_t> sends, receives;  // by peer

    Impl(std::string name, std::vector<int> world_ranks, int rank, int number);
    int size() const { return int(world_ranks.size()); }
    int collective_tag() { return tag(0, collectives++); }
    int send_tag(int peer) { return tag(1, sends[peer]++); }
    int receive_tag(int peer) { return tag(1, receives[peer]++); }

    static int group_tags();  // tags of one group: the lower half for collectives, the upper for send/recv
    static int groups();      // how many groups there can be
    int tag(int half, uint64_t call) const;
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
    Exchange(const Communicator::Impl& group, int tag) : group_(&group), tag_(tag) {}
    int rank() const { return group_->rank; }
    int size() const { return group_->size(); }

    void send(const void* data, int64_t bytes, int peer) { send(data, bytes, peer, tag_); }
    void recv(void* data, int64_t bytes, int peer) { recv(data, bytes, peer, tag_); }
    void send(const void* data, int64_t bytes, int peer, int tag);
    void recv(void* data, int64_t bytes, int peer, int tag);
    void wait();  // for all of them; their sizes must be what was expected

    // Calls body(peer) for every other rank, the next one first, so that not all ranks begin with rank 0.
    template <class Body>
    void for_each_peer(Body body) const {
        for (int i = 1; i < size(); ++i) body((rank() + i) % size());
    }

private:
    const Communicator::Impl* group_;
    int tag_;  // of the call
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
