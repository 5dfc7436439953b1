// Private to communication: what a Communicator holds, how messages travel over MPI, and the
// collectives made of them.
#pragma once

#define MPICH_SKIP_MPICXX  // the C interface is enough; the old C++ one would have to be linked
#define OMPI_SKIP_MPICXX
#include <mpi.h>

#include <atomic>
#include <deque>
#include <type_traits>
#include <utility>

#include "comm/comm.h"

namespace ultrascale {

// A group of ranks. Groups are ours, not MPI's: all messages travel in MPI_COMM_WORLD, and a group
// has a range of tags to itself. (MPI_Comm_split spins, like every blocking call: 100 ms for 8
// ranks on 2 cores with MPICH 4.0.2; ours takes 0.05.)
//
// The range is the group's number. A split gives the lowest number that is new to each of its
// ranks; so two groups that have two ranks in common have two numbers, and groups without may share
// one.
//
// Within the range a call's place in the program order, which all ranks share, makes its tag, so
// that calls which run on different streams at the same time cannot take each other's messages.
struct Communicator::Impl {
    std::string name;
    std::vector<int> world_ranks;  // of the group's ranks
    int rank, number;
    uint64_t collectives = 0;               // calls so far
    std::vector<uint64_t> sends, receives;  // by peer
    std::array<int64_t, collective_kinds> calls{};
    bool opened = false;
    struct Link;
    std::shared_ptr<Link> link;  // CUDA: the group's NCCL communicator

    Impl(std::string name, std::vector<int> world_ranks, int rank, int number);
    int size() const { return int(world_ranks.size()); }
    // Calls body(peer) for every other rank, the next one first, so that not all ranks begin with
    // rank 0.
    template <class Body>
    void for_each_peer(Body body) const {
        for (int i = 1; i < size(); ++i) body((rank + i) % size());
    }
    void open();  // transport::open(), once: also if that fails. All ranks of the group
    int collective_tag() { return tag(0, collectives++); }
    int send_tag(int peer) { return tag(1, sends[peer]++); }
    int receive_tag(int peer) { return tag(1, receives[peer]++); }

    static int
    group_tags();  // tags of one group: the lower half for collectives, the upper for send/recv
    static int groups();      // how many groups there can be
    int tag(int half, uint64_t call) const;
};

// Where one way ends and another begins. Variable so that tests reach every path with little data;
// equal on all ranks.
struct CommunicationSettings {
    int64_t piece_bytes =
        1 << 30;  // MPI counts with an int: longer messages travel in pieces of this size
    int64_t small_bytes = 4 << 10;  // an all-reduce or reduce up to this size takes one round
    int64_t chunk_bytes =
        1 << 20;  // longer reductions go through scratch of about this size, chunk after chunk
    // CUDA, by copy engines (nccl/comm_copies.h): whether at all; tensors from which size and up to
    // which (a reduction's scratch is almost as large); how much scratch a group's reductions may
    // hold whose sum is still to come (the latest one's is always allowed).
    bool copy_engines = true;
    int64_t copies_from_bytes = 1 << 20, copies_up_to_bytes = int64_t(4) << 30,
            copies_unsummed_bytes = 256 << 20;
};
CommunicationSettings& communication_settings();

// Pretended nodes (slow_links.h): from when to when a message occupies its sender's network card.
struct SlowTrip {
    double begin, end;
};

// Bytes that this rank has given to MPI or to copy engines for other ranks, since the program's
// start. Tests compare it with the formula by which communication is counted (comm.h: bytes_sent).
std::atomic<int64_t>& bytes_handed_over();

// A set of messages that progress together.
//
// Waiting is a loop of MPI_Testall and sched_yield(): MPI's blocking calls spin, which with more
// ranks than cores keeps the rank one waits for off the core (8 ranks on 2 cores, MPICH 4.0.2: 24
// ms for an all-reduce of one float).
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
    bool done();  // never blocks

    template <class Body>
    void for_each_peer(Body body) const {
        group_->for_each_peer(body);
    }

private:
    const Communicator::Impl* group_;
    int tag_;  // of the call
    std::vector<MPI_Request> requests_;
    std::vector<int> expected_;  // bytes of a receive; -1 for a send
    std::vector<MPI_Status> statuses_;

    struct SlowMessage {
        int64_t bytes;
        bool received;
        SlowTrip trip;  // a note that follows the message
    };
    std::deque<SlowMessage> slow_;         // between pretended nodes; MPI writes to their trips
    double set_out_ = 0, slow_until_ = 0;  // when their sends did, and when all are complete

    bool arrived();  // MPI has nothing left to do
    void check_sizes();
};

// Every rank's value, in rank order. Between hosts; all ranks of the group call it.
template <class T>
std::vector<T> tell_all(Communicator::Impl& group, const T& mine) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(group.world_ranks.size());
    all[size_t(group.rank)] = mine;
    Exchange exchange(group, group.collective_tag());
    exchange.for_each_peer([&](int peer) { exchange.recv(&all[size_t(peer)], sizeof(T), peer); });
    exchange.for_each_peer([&](int peer) { exchange.send(&mine, sizeof(T), peer); });
    exchange.wait();
    return all;
}

// A Work went down with an exception before its communication had ended: its ranks may never meet
// again. From then on every wait of an Exchange throws instead of hanging, by
// check_not_abandoned(). (false: a test is done with it.)
void abandon_communication(bool abandoned = true);
void check_not_abandoned();

// From now on, if this process ends in any way before stop_watching(), one line on stderr names it.
void watch_this_rank(int rank);
void stop_watching();

// out[i] = reduction over r of inputs[r][i], r = 0, 1, ...; `out` may be one of the inputs.
void reduce_in_rank_order(void* out, const std::vector<const void*>& inputs, int64_t count,
                          DType dtype, Reduce op);

// A call as numbers and addresses, on whatever device; it owns nothing.
struct Operation {
    struct Message {  // of a send_recv
        bool send;
        char* data;
        int64_t bytes;
        int peer, tag;
    };
    Collective kind;
    // the same for all-reduce, reduce and broadcast; null where this rank has none
    char *out = nullptr, *in = nullptr;
    int64_t out_bytes = 0, in_bytes = 0;
    DType dtype = DType::fp32;
    Reduce op = Reduce::sum;
    int root = -1;
    std::vector<int64_t> send_begin,
        recv_begin;  // all-to-all: where each rank's slice begins, in bytes, and the end
    std::vector<Message> messages;

    // How a reduction goes over MPI; plan_reduction() fills it in.
    bool small = false;         // in one round
    int64_t chunk = 0;          // elements of a round otherwise
    int64_t scratch_count = 0;  // elements it needs at `scratch`
    char* scratch = nullptr;

    int64_t width() const { return dtype_bytes(dtype); }
};

void plan_reduction(Operation& operation, int rank, int size);
void post_messages(const std::vector<Operation::Message>& messages, Exchange& exchange);
void run_over_mpi(const Operation& operation, Exchange& exchange);  // all addresses on the host

}  // namespace ultrascale
