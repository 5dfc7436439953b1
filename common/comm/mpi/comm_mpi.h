// Private to communication: the state of a Communicator, messages over MPI, and the collectives
// built from them.
#pragma once

#define MPICH_SKIP_MPICXX  // only the C interface; the C++ one would have to be linked
#define OMPI_SKIP_MPICXX
#include <mpi.h>

#include <atomic>
#include <deque>
#include <type_traits>
#include <utility>

#include "comm/comm.h"
#include "core/stream_failure.h"

namespace ultrascale {

// MPI's number of a rank of world().
int mpi_rank(int world_rank);

// A group of ranks. We do not use MPI's groups: all messages travel in MPI_COMM_WORLD, and each
// group has its own range of tags. (MPI_Comm_split spins, like every blocking call: it takes 100 ms
// for 8 ranks on 2 cores with MPICH 4.0.2; ours takes 0.05.)
//
// The group's number selects the range. A split assigns the lowest number that none of its ranks
// has used. So two groups with two ranks in common have different numbers, while other groups may
// share a number.
//
// Within the range the tag is the call's index in program order, which is the same on all ranks, so
// that concurrent calls on different streams cannot take each other's messages.
struct Communicator::Impl {
    std::string name;
    std::vector<int> world_ranks;  // the group's ranks in world()
    int rank, number;
    uint64_t collectives = 0;               // calls so far
    std::vector<uint64_t> sends, receives;  // by peer
    std::array<int64_t, collective_kinds> calls{};
    bool opened = false, imagined = false;
    struct Link;
    std::shared_ptr<Link> link;  // CUDA: the group's NCCL communicator
    struct Mailbox;
    std::shared_ptr<Mailbox> mailbox;  // CUDA: if the group has opened one

    Impl(std::string name, std::vector<int> world_ranks, int rank, int number);
    int size() const { return int(world_ranks.size()); }
    // Calls body(peer) for every other rank, the next one first, so that not all ranks begin with
    // rank 0.
    template <class Body>
    void for_each_peer(Body body) const {
        for (int i = 1; i < size(); ++i) body((rank + i) % size());
    }
    void open();  // all ranks of the group: transport::open(), once, even if it fails
    int collective_tag() { return tag(0, collectives++); }
    int send_tag(int peer) { return tag(1, sends[peer]++); }
    int receive_tag(int peer) { return tag(1, receives[peer]++); }

    static int
    group_tags();  // tags per group: the lower half for collectives, the upper half for send/recv
    static int groups();  // the largest number of groups
    int tag(int half, uint64_t call) const;
};

// The sizes at which one algorithm takes over from another. They are variable so that tests reach
// every path with little data, and the same on all ranks.
struct CommunicationSettings {
    int64_t piece_bytes =
        1 << 30;  // MPI counts in int: longer messages are sent in pieces of this size
    int64_t small_bytes = 4 << 10;  // up to this size an all-reduce or reduce takes one round
    int64_t chunk_bytes =
        1 << 20;  // longer reductions proceed in chunks, with scratch of about this size
    // Copy engines on CUDA (nccl/comm_copies.h): whether they are used at all; the smallest and
    // largest tensor for which they are used (a reduction's scratch is almost as large as the
    // tensor); and how much scratch a group's unfinished reductions may hold (the latest one's is
    // always allowed).
    bool copy_engines = true;
    int64_t copies_from_bytes = 1 << 20, copies_up_to_bytes = int64_t(4) << 30,
            copies_unsummed_bytes = 256 << 20;
};
CommunicationSettings& communication_settings();

// Simulated nodes (slow_links.h): the time during which a message occupies its sender's network
// card.
struct SlowTrip {
    double begin, end;
};

// The bytes that this rank has passed to MPI or copy engines for other ranks since the program's
// start. Tests compare them with the formula of comm.h (bytes_sent).
std::atomic<int64_t>& bytes_handed_over();

// A set of messages that progress together.
//
// Waiting is a loop of MPI_Testall and sched_yield(). MPI's blocking calls spin, and with more
// ranks than cores this keeps the awaited rank off the core (8 ranks on 2 cores, MPICH 4.0.2: 24 ms
// for an all-reduce of one float).
class Exchange {
public:
    Exchange(const Communicator::Impl& group, int tag) : group_(&group), tag_(tag) {}
    int rank() const { return group_->rank; }
    int size() const { return group_->size(); }
    // The call's name in the message after a wait that lasts too long (limit_waits()).
    void set_name(const char* name) { name_ = name; }

    void send(const void* data, int64_t bytes, int peer) { send(data, bytes, peer, tag_); }
    void recv(void* data, int64_t bytes, int peer) { recv(data, bytes, peer, tag_); }
    void send(const void* data, int64_t bytes, int peer, int tag);
    void recv(void* data, int64_t bytes, int peer, int tag);
    void wait();  // for all of them; checks that the sizes are as expected
    // The same. Unless the wait is short, it leaves the core to others, and checks after so many
    // seconds. `limited`: by limit_waits().
    void wait_asleep(double between_checks, bool limited);
    bool done();  // never blocks

    template <class Body>
    void for_each_peer(Body body) const {
        group_->for_each_peer(body);
    }

private:
    const Communicator::Impl* group_;
    int tag_;  // the call's
    const char* name_ = "a message between hosts";
    std::vector<MPI_Request> requests_;
    std::vector<int> expected_;  // bytes of a receive; -1: a send
    std::vector<int> peers_;     // of the requests, in world()
    std::vector<MPI_Status> statuses_;

    struct SlowMessage {
        int64_t bytes;
        bool received;
        SlowTrip trip;  // sent after the message
    };
    std::deque<SlowMessage> slow_;         // between simulated nodes; MPI writes to their `trip`
    double set_out_ = 0, slow_until_ = 0;  // when their sends began, and when all are complete

    bool arrived();  // MPI has completed all requests
    [[noreturn]] void end_after_errors() const;
    void check_sizes();
    [[noreturn]] void end_after_long_wait(double seconds);
};

// Returns every rank's value, in rank order. Runs between hosts; all ranks of the group call it.
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

// How long the limit of limit_waits() is exceeded, counted from that call; 0: it is not.
double seconds_over_limit();

// From now on, if this process ends in any way before stop_watching(), a line on stderr names it.
// Errors of MPI end the job as end_after_mpi_error() does: a wrong call counts as a bug, any other
// error as a lost peer or link (error.h: Exit).
void watch_this_rank(const std::string& rank);  // "rank 2"
void stop_watching();
[[noreturn]] void end_after_mpi_error(int code);

// out[i] = reduction over r of inputs[r][i], r = 0, 1, ...; `out` may be one of the inputs.
void reduce_in_rank_order(void* out, const std::vector<const void*>& inputs, int64_t count,
                          DType dtype, Reduce op);

// A call as plain numbers and addresses, for any device. It owns nothing.
struct Operation {
    struct Message {  // of a send_recv
        bool send;
        char* data;
        int64_t bytes;
        int peer, tag;
    };
    Collective kind;
    // The two are equal for all-reduce, reduce and broadcast. Null if this rank has none.
    char *out = nullptr, *in = nullptr;
    int64_t out_bytes = 0, in_bytes = 0;
    DType dtype = DType::fp32;
    Reduce op = Reduce::sum;
    int root = -1;
    std::vector<int64_t> send_begin,
        recv_begin;  // all-to-all: the byte where each rank's slice begins, and the end
    // For an all-to-all whose counts all ranks know: the byte in each peer's `out` where this
    // rank's slice begins, and the average bytes of a rank.
    std::vector<int64_t> begin_at_peers;
    int64_t average_bytes = 0;
    std::vector<Message> messages;

    // The algorithm of a reduction over MPI; plan_reduction() sets it.
    bool small = false;         // one round
    int64_t chunk = 0;          // otherwise: elements per round
    int64_t scratch_count = 0;  // elements needed at `scratch`
    char* scratch = nullptr;

    int64_t width() const { return dtype_bytes(dtype); }
};

void plan_reduction(Operation& operation, int rank, int size);
void post_messages(const std::vector<Operation::Message>& messages, Exchange& exchange);
void run_over_mpi(const Operation& operation, Exchange& exchange);  // addresses on the host

}  // namespace ultrascale
