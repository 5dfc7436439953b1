// Groups of ranks (world, splits, tags), and the start and end of MPI, for both backends.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <thread>
#include <utility>

#include "comm/comm_transport.h"
#include "comm/nodes.h"

namespace ultrascale {

static bool mpi_is_running() {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    return initialized && !finalized;
}

// Of the groups that this rank is in, the latest of each name.
static std::map<std::string, std::vector<int>>& members_by_name() {
    static auto& members = *new std::map<std::string, std::vector<int>>;
    return members;
}

Communicator::Impl::Impl(std::string name, std::vector<int> world_ranks, int rank, int number)
    : name(std::move(name)),
      world_ranks(std::move(world_ranks)),
      rank(rank),
      number(number),
      sends(size()),
      receives(size()) {
    check(number < 0 || number < groups(), "too many groups were made: MPI has no tags left");
    if (number >= 0) members_by_name()[this->name] = this->world_ranks;
}

bool spans_nodes(const std::string& group, const Nodes& nodes) {
    const auto found = members_by_name().find(group);
    if (found == members_by_name().end()) return false;
    const std::vector<int>& ranks = found->second;
    return std::ranges::any_of(ranks, [&](int r) { return nodes.between(r, ranks[0]); });
}

// MPI guarantees 32768 tags, which suffice for 64 groups, each with 256 concurrent calls of a kind.
// MPICH and Open MPI have more.
static int64_t mpi_tags() {
    int* upper_bound = nullptr;
    int found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &upper_bound, &found);
    return int64_t(found ? *upper_bound : 32767) + 1;
}
int Communicator::Impl::group_tags() {
    static const int tags = int(std::min<int64_t>(4096, mpi_tags() / 64));
    return tags;
}
int Communicator::Impl::groups() {
    static const int groups = int(mpi_tags() / group_tags());
    return groups;
}
int Communicator::Impl::tag(int half, uint64_t call) const {
    int calls = group_tags() / 2;
    return number * group_tags() + half * calls + int(call % calls);
}

static int world_size = 1, world_rank = 0;
static std::vector<int> mpi_ranks = {0};  // by our number
static Nodes all_machines{.ranks = 1, .placed = {0}, .names = {""}};
static Communicator::Impl* arrivals =
    nullptr;  // all ranks again: when one rank arrives, others may be in any call on world
static int next_group = 0;  // the lowest group number that is new to this rank

// Finds the machines of all ranks, and numbers the ranks machine by machine. A launcher may place
// them one after the other on different machines (srun --distribution=cyclic), but neighbours, such
// as the ranks of tensor parallelism, should share one. Rank 0 stays rank 0.
static void find_machines() {
    struct Rank {
        int first;  // MPI's number of the first rank on its machine
        char host[MPI_MAX_PROCESSOR_NAME];
    };
    int mpi_rank = 0, length = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    Rank mine{.first = mpi_rank, .host = {}};
    MPI_Get_processor_name(mine.host, &length);
    MPI_Comm machine;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Bcast(&mine.first, 1, MPI_INT, 0, machine);
    MPI_Comm_free(&machine);
    std::vector<Rank> ranks(static_cast<size_t>(world_size));
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, ranks.data(), sizeof mine, MPI_BYTE,
                  MPI_COMM_WORLD);
    std::vector<int> order(ranks.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](int r) { return ranks[size_t(r)].first; });
    all_machines = {};
    for (const int r : order) {
        if (ranks[size_t(r)].first == r) all_machines.names.emplace_back(ranks[size_t(r)].host);
        all_machines.placed.push_back(int(all_machines.names.size()) - 1);
    }
    for (const int node : all_machines.placed)
        all_machines.ranks =
            std::max(all_machines.ranks, int(std::ranges::count(all_machines.placed, node)));
    world_rank = int(std::ranges::find(order, mpi_rank) - order.begin());
    mpi_ranks = std::move(order);
}
const Nodes& machines() { return all_machines; }
int mpi_rank(int world_rank) { return mpi_ranks[size_t(world_rank)]; }

Communicator& Communicator::world() {
    static Communicator& world = *[] {
        int provided = 0;
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
        check(provided == MPI_THREAD_MULTIPLE, "this MPI does not let several threads communicate");
        trace_complete_with(resolve_communication_times);
        find_machines();
        std::vector<int> all(static_cast<size_t>(world_size));
        std::iota(all.begin(), all.end(), 0);
        if (world_size > 1) watch_this_rank(rank_name(world_rank));
        auto* communicator =
            new Communicator(std::make_shared<Impl>("world", all, world_rank, next_group++));
        arrivals = new Impl("arrivals", all, world_rank, next_group++);
        return communicator;
    }();
    return world;
}

void Communicator::Impl::open() {
    if (!std::exchange(opened, true)) transport::open(*this);
}

// The group of the ranks with this color, which the transport does not know yet.
static std::shared_ptr<Communicator::Impl> group_of(Communicator::Impl& all, int color, int key,
                                                    std::string name) {
    struct Wish {
        int color, key, rank, group;
    };
    std::vector<Wish> wishes = tell_all(all, Wish{color, key, all.rank, next_group});
    for (const Wish& wish : wishes) next_group = std::max(next_group, wish.group);
    std::erase_if(wishes, [&](const Wish& wish) { return wish.color != color; });
    std::ranges::stable_sort(wishes, {}, &Wish::key);  // equal keys stay in rank order
    std::vector<int> members;
    int index = 0;
    for (const Wish& wish : wishes) {
        if (wish.rank == all.rank) index = int(members.size());
        members.push_back(all.world_ranks[wish.rank]);
    }
    return std::make_shared<Communicator::Impl>(std::move(name), std::move(members), index,
                                                next_group++);
}

Communicator Communicator::split(int color, int key, std::string name) const {
    check(!impl_->imagined, "imagined ranks cannot tell which of them form a group");
    impl_->open();
    std::shared_ptr<Impl> group = group_of(*impl_, color, key, std::move(name));
    group->open();
    return Communicator(std::move(group));
}

Communicator Communicator::between_hosts(std::string name) const {
    return Communicator(group_of(*impl_, 0, rank(), std::move(name)));
}

Communicator Communicator::split(int color, int key, std::string name, int ranks, int rank) const {
    if (impl_->imagined) return imagined(std::move(name), ranks, rank);
    Communicator group = split(color, key, std::move(name));
    check(group.size() == ranks && group.rank() == rank, "a group is not what its maker knows");
    return group;
}

Communicator Communicator::imagined(std::string name, int ranks, int rank) {
    check(0 <= rank && rank < ranks, "no such rank in this communicator");
    std::vector<int> all(static_cast<size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    auto group = std::make_shared<Impl>(std::move(name), std::move(all), rank, -1);
    group->opened = group->imagined = true;  // there is nobody to connect with
    return Communicator(std::move(group));
}
bool Communicator::is_imagined() const { return impl_->imagined; }

std::vector<std::string> Communicator::gather_strings(const std::string& mine) const {
    const std::vector<int64_t> lengths = tell_all(*impl_, int64_t(mine.size()));
    std::vector<std::string> all(lengths.size());
    for (size_t r = 0; r < all.size(); ++r) all[r].resize(size_t(lengths[r]));
    all[rank()] = mine;
    Exchange exchange(*impl_, impl_->collective_tag());
    exchange.for_each_peer([&](int peer) { exchange.recv(all[peer].data(), lengths[peer], peer); });
    exchange.for_each_peer([&](int peer) { exchange.send(mine.data(), lengths[rank()], peer); });
    exchange.wait();
    return all;
}
std::string Communicator::broadcast_string(const std::string& root_string, int root) const {
    return gather_strings(rank() == root ? root_string : "")[size_t(root)];
}

void Communicator::send_from_host(const void* data, int64_t bytes, int to) const {
    Exchange exchange(*impl_, impl_->send_tag(to));
    exchange.send(data, bytes, to);
    exchange.wait_asleep(1e-4, true);
}
void Communicator::recv_on_host(void* data, int64_t bytes, int from) const {
    Exchange exchange(*impl_, impl_->receive_tag(from));
    exchange.recv(data, bytes, from);
    exchange.wait_asleep(1e-4, true);
}

void Communicator::wait_asleep_for(int root) const {
    Exchange exchange(*impl_, impl_->collective_tag());
    char word = 0;
    if (rank() == root)
        exchange.for_each_peer([&](int peer) { exchange.send(&word, 1, peer); });
    else
        exchange.recv(&word, 1, root);
    exchange.wait_asleep(1e-3, false);  // however long the root computes
}

int Communicator::rank() const { return impl_->rank; }
int Communicator::size() const { return impl_->size(); }
const std::string& Communicator::name() const { return impl_->name; }

std::string rank_name(int rank) {
    const Nodes& nodes = all_machines;
    return "rank " + std::to_string(rank) +
           (nodes.names.size() > 1 ? " on " + nodes.names[size_t(nodes.node_of(rank))] : "");
}
std::string rank_prefix() { return world_size > 1 ? rank_name(world_rank) + ": " : ""; }
int ranks_on_this_node() {
    return int(std::ranges::count(all_machines.placed, all_machines.node_of(world_rank)));
}
int rank_on_this_node() { return all_machines.index_in_node(world_rank); }

bool all_ranks_arrive(double seconds) {
    Communicator::world();
    // Never freed: MPI may still write here after the program has given up the wait.
    static auto& exchange = *new Exchange(*arrivals, arrivals->tag(0, 0));
    static auto& received = *new std::vector<char>(size_t(world_size));
    static const char sent = 0;
    exchange.for_each_peer([](int peer) { exchange.recv(&received[peer], 1, peer); });
    exchange.for_each_peer([](int peer) { exchange.send(&sent, 1, peer); });
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (!exchange.done()) {
        if (std::chrono::steady_clock::now() > end) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

#if defined(MPICH_NUMVERSION) && MPICH_NUMVERSION < 40200000
// In MPI_Finalize, MPICH before 4.2.0 closes its connections to other hosts with this function of
// UCX, waits until they are closed, and only then for the other ranks, whom it does not answer any
// more. But to close a connection UCX may need an answer from the other end: with three ranks on
// two hosts every second run hung there. (MPICH 4.2.0 lets the ranks wait for each other first.)
// So the program has a function of this name that closes nothing, and the linker puts it before
// UCX's (Makefile). What is left open ends with the process; nothing is lost, as all messages have
// arrived before finalize_communication() calls MPI_Finalize.
extern "C" void* ucp_disconnect_nb(void* /*endpoint*/) {
    return nullptr;  // UCS_OK: it is closed
}
#endif

void finalize_communication() {
    if (!mpi_is_running()) return;
    // MPI_Finalize spins while it waits, so all ranks meet here first. The tag differs from that of
    // all_ranks_arrive, in which a failing rank may be.
    Exchange all(*arrivals, arrivals->tag(0, 1));
    run_over_mpi({.kind = Collective::barrier}, all);
    transport::close();
    stop_watching();
    MPI_Finalize();
}

void abort_all_ranks(int exit_code) {
    std::fflush(nullptr);
    stop_watching();
    // When it is told to abort, the launcher drops output that it has not read yet (MPICH 4.0.2: 2
    // messages of 30).
    if (world_size > 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (mpi_is_running()) MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::_Exit(exit_code);
}

void abort_all_ranks(const std::exception& error) {
    const bool from_peer = dynamic_cast<const PeerError*>(&error);
    fmt::print(stderr, "{}: {}{}\n", from_peer ? "error" : "internal error", rank_prefix(),
               error.what());
    abort_all_ranks(int(from_peer ? Exit::peer : Exit::bug));
}

}  // namespace ultrascale
