// Communicators, Work and counters on the CPU. The collectives are in comm_mpi.cpp.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <numeric>

#include "../trace.h"
#include "comm_mpi.h"

namespace ultrascale {

// ---- counters ------------------------------------------------------------------------------------------------------------

static std::mutex counts_mutex;
static CommunicationCounts counts;  // under the mutex

static void add_count(Collective kind, const CommunicationCount& more) {
    std::lock_guard lock(counts_mutex);
    CommunicationCount& count = counts[int(kind)];
    count.calls += more.calls;
    count.bytes += more.bytes;
    count.seconds += more.seconds;
    count.exposed += more.exposed;
}

CommunicationCounts communication_counts() {
    std::lock_guard lock(counts_mutex);
    return counts;
}

void communication_reset_counts() {
    std::lock_guard lock(counts_mutex);
    counts = {};
}

// ---- Work ----------------------------------------------------------------------------------------------------------------

struct Work::Impl {
    Collective kind;
    std::vector<Tensor> tensors;
    std::shared_ptr<Communicator::Impl> communicator;  // a group may be dropped before its last Work
    Event finished;
    int exceptions = std::uncaught_exceptions();  // on their way when the call was made
};

Work issue(const std::shared_ptr<Communicator::Impl>& communicator, Call call, Stream& stream, std::function<void(Exchange&)> body) {
    bool asynchronous = &stream != &compute_stream();
    add_count(call.kind, {1, call.bytes, 0, 0});
    if (explain_enabled()) {
        explain(fmt::format("{} {} over {} ({} ranks){}{}", collective_names[int(call.kind)], format_bytes(double(call.bytes)),
                            communicator->name, communicator->size(), call.detail, asynchronous ? ", asynchronous" : ""));
    }
    int tag = call.kind == Collective::send_recv ? 0 : communicator->collective_tag();
    Exchange exchange(*communicator, tag);
    if (asynchronous) stream.wait(compute_stream().record());  // the inputs are ready then
    stream.submit([=, kind = call.kind, bytes = call.bytes, lane = &stream.name(), body = std::move(body)]() mutable {
        double begin = now_seconds();
        body(exchange);
        double end = now_seconds();
        add_count(kind, {0, 0, end - begin, asynchronous ? 0 : end - begin});
        trace_span(collective_names[int(kind)], *lane, begin, end, 0, double(bytes));
    });
    auto work = std::make_shared<Work::Impl>();
    work->kind = call.kind;
    work->tensors = std::move(call.tensors);
    work->communicator = communicator;
    work->finished = stream.record();
    return Work(std::move(work));
}

Work::~Work() {
    if (!impl_) return;
    if (std::uncaught_exceptions() > impl_->exceptions && !done()) {
        // The program is on its way out, and the other ranks may never make the matching call. MPI may still write to
        // the tensors, so they stay.
        static auto& abandoned = *new std::vector<std::shared_ptr<Impl>>;
        abandoned.push_back(std::move(impl_));
        abandon_communication();
        return;
    }
    wait();
}

Work& Work::operator=(Work&& other) {
    if (this != &other) {
        wait();
        impl_ = std::move(other.impl_);
    }
    return *this;
}

void Work::wait() {
    if (!impl_) return;
    auto impl = std::move(impl_);
    if (impl->finished.reached()) return impl->finished.synchronize();  // only to hear of a failure
    double begin = now_seconds();
    impl->finished.synchronize();
    add_count(impl->kind, {0, 0, 0, now_seconds() - begin});
}

bool Work::done() const { return !impl_ || impl_->finished.reached(); }

// ---- communicators -------------------------------------------------------------------------------------------------------

static bool mpi_is_running() {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    return initialized && !finalized;
}

Communicator::Impl::Impl(std::string name, std::vector<int> world_ranks, int rank, int number)
    : name(std::move(name)), world_ranks(std::move(world_ranks)), rank(rank), number(number), sends(size()), receives(size()) {
    check(number < groups(), "too many groups were made: MPI has no tags left");
}

// MPI promises 32768 tags (then 64 groups, and 256 calls of a kind can be under way at once); MPICH and Open MPI have more.
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

static int node_ranks = 1;
static int next_group = 0;  // the lowest number that is new to this rank

Communicator& Communicator::world() {
    static Communicator& world = *[] {
        int provided = 0;
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
        check(provided == MPI_THREAD_MULTIPLE, "this MPI does not let several threads communicate");
        MPI_Comm node;
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
        MPI_Comm_size(node, &node_ranks);
        MPI_Comm_free(&node);
        int rank = 0, size = 0;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        std::vector<int> all(size);
        std::iota(all.begin(), all.end(), 0);
        return new Communicator(std::make_shared<Impl>("world", all, rank, next_group++));
    }();
    return world;
}

Communicator Communicator::split(int color, int key, std::string name) const {
    struct Wish {
        int color, key, rank, group;
    };
    std::vector<Wish> wishes(size());
    wishes[rank()] = {color, key, rank(), next_group};
    Exchange exchange(*impl_, impl_->collective_tag());
    exchange.for_each_peer([&](int peer) { exchange.recv(&wishes[peer], sizeof(Wish), peer); });
    exchange.for_each_peer([&](int peer) { exchange.send(&wishes[rank()], sizeof(Wish), peer); });
    exchange.wait();
    for (const Wish& wish : wishes) next_group = std::max(next_group, wish.group);
    std::erase_if(wishes, [&](const Wish& wish) { return wish.color != color; });
    std::ranges::stable_sort(wishes, {}, &Wish::key);  // equal keys stay in rank order
    std::vector<int> members;
    int place = 0;
    for (const Wish& wish : wishes) {
        if (wish.rank == rank()) place = int(members.size());
        members.push_back(impl_->world_ranks[wish.rank]);
    }
    return Communicator(std::make_shared<Impl>(std::move(name), std::move(members), place, next_group++));
}

int Communicator::rank() const { return impl_->rank; }
int Communicator::size() const { return impl_->size(); }
const std::string& Communicator::name() const { return impl_->name; }

int ranks_on_this_node() { return node_ranks; }

void finalize_communication() {
    if (!mpi_is_running()) return;
    Communicator::world().barrier();  // MPI_Finalize spins: it should not have to wait for anyone
    MPI_Finalize();
}

void abort_all_ranks(int exit_code) {
    std::fflush(nullptr);
    if (mpi_is_running()) MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::_Exit(exit_code);
}

}  // namespace ultrascale
