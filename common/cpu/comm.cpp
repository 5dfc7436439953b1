// Communicators, Work and counters on the CPU. The collectives are in comm_mpi.cpp.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>

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
                            communicator->name, communicator->size, call.detail, asynchronous ? ", asynchronous" : ""));
    }
    int tag = call.kind == Collective::send_recv ? 0 : communicator->collective_tag();
    Exchange exchange(communicator->mpi, communicator->rank, communicator->size, tag);
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

Communicator::Impl::Impl(MPI_Comm mpi, std::string name) : mpi(mpi), name(std::move(name)) {
    MPI_Comm_rank(mpi, &rank);
    MPI_Comm_size(mpi, &size);
    sends.resize(size);
    receives.resize(size);
}

Communicator::Impl::~Impl() {
    if (mpi != MPI_COMM_WORLD && mpi_is_running()) MPI_Comm_free(&mpi);
}

uint64_t Communicator::Impl::tags() {
    static const uint64_t half = [] {
        int* upper_bound = nullptr;
        int found = 0;
        MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &upper_bound, &found);
        return (uint64_t(found ? *upper_bound : 32767) + 1) / 2;
    }();
    return half;
}

static int node_ranks = 1;

Communicator& Communicator::world() {
    static Communicator& world = *[] {
        int provided = 0;
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
        check(provided == MPI_THREAD_MULTIPLE, "this MPI does not let several threads communicate");
        MPI_Comm node;
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
        MPI_Comm_size(node, &node_ranks);
        MPI_Comm_free(&node);
        return new Communicator(std::make_shared<Impl>(MPI_COMM_WORLD, "world"));
    }();
    return world;
}

Communicator Communicator::split(int color, int key, std::string name) const {
    check(color >= 0, "split: a color is not negative");
    barrier();  // MPI_Comm_split spins: it should not have to wait for anyone
    MPI_Comm part;
    MPI_Comm_split(impl_->mpi, color, key, &part);
    return Communicator(std::make_shared<Impl>(part, std::move(name)));
}

int Communicator::rank() const { return impl_->rank; }
int Communicator::size() const { return impl_->size; }
const std::string& Communicator::name() const { return impl_->name; }

int ranks_on_this_node() { return node_ranks; }

void finalize_communication() {
    if (!mpi_is_running()) return;
    Communicator::world().barrier();  // as in split
    MPI_Finalize();
}

void abort_all_ranks(int exit_code) {
    std::fflush(nullptr);
    if (mpi_is_running()) MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::_Exit(exit_code);
}

}  // namespace ultrascale
