// CUDA's transport: NCCL, and in some cases copy engines (comm_copies.h). Ranks that share a GPU
// can use neither; their communication goes through the host (comm_staged.cpp).
#include "comm_nccl.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>

#include "comm/mpi/slow_links.h"
#include "comm_copies.h"
#include "core/trace.h"
#include "mailbox.h"

namespace ultrascale {

namespace {

using Link = Communicator::Impl::Link;

bool sharing = false;  // some GPU is used by several ranks

// Finds out whether each rank of the world has its own GPU: all ranks exchange the UUIDs of the
// GPUs that they will use.
void compare_gpus(Communicator::Impl& world) {
    using Uuid = std::array<char, 16>;
    Uuid mine{};
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess &&
        count > 0) {  // without a GPU, the first stream reports that
        cuda_select_device();
        int device = 0;
        cudaDeviceProp properties;
        cuda_check(cudaGetDevice(&device));
        cuda_check(cudaGetDeviceProperties(&properties, device));
        std::memcpy(mine.data(), properties.uuid.bytes, sizeof(Uuid));
    }
    const std::vector<Uuid> gpus = tell_all(world, mine);
    std::set<Uuid> different(gpus.begin(), gpus.end());
    sharing = int(different.size()) < world.size() || different.contains(Uuid{});
    if (sharing && world.rank == 0 && !different.contains(Uuid{})) {
        std::fprintf(stderr, "%d ranks share %d GPU%s: communication goes through the host\n",
                     world.size(), int(different.size()), different.size() == 1 ? "" : "s");
    }
}

// ---- operations ---------------------------------------------------------------------------------

ncclDataType_t type_of(DType dtype) {
    switch (dtype) {
        case DType::fp32: return ncclFloat32;
        case DType::bf16: return ncclBfloat16;
        case DType::fp16: return ncclFloat16;
        case DType::fp64: return ncclFloat64;
        case DType::int32: return ncclInt32;
        case DType::e4m3: return ncclFloat8e4m3;
        case DType::e5m2: return ncclFloat8e5m2;
    }
    return ncclFloat32;
}

ncclRedOp_t op_of(Reduce op) {
    return op == Reduce::sum ? ncclSum : op == Reduce::max ? ncclMax : ncclAvg;
}

// The messages of one operation, which progress together. This rank's own slice is copied.
struct Messages {
    int rank;
    std::shared_ptr<Link> link;  // null for a group of one rank
    Stream& stream;
    struct Message {
        bool send;
        char* data;
        int64_t bytes;
        int peer;
    };
    std::vector<Message> all = {};

    void send(char* data, int64_t bytes, int peer) { all.push_back({true, data, bytes, peer}); }
    void recv(char* data, int64_t bytes, int peer) { all.push_back({false, data, bytes, peer}); }

    void run() {
        std::vector<Message> own_sends, own_receives;
        for (const Message& m : all)
            if (m.peer == rank) (m.send ? own_sends : own_receives).push_back(m);
        check(own_sends.size() == own_receives.size(),
              "on CUDA a rank's messages to itself must be in one call");
        std::erase_if(all, [this](const Message& m) { return m.peer == rank || m.bytes == 0; });
        Stream& beside = all.empty() || own_sends.empty() ? stream : own_slices();
        if (&beside != &stream) beside.wait(stream.record());
        for (size_t i = 0; i < own_sends.size(); ++i) {
            const Message &from = own_sends[i], &to = own_receives[i];
            check(from.bytes == to.bytes,
                  "a message was shorter than expected: the ranks' tensors differ in size");
            if (to.data != from.data && to.bytes > 0)
                cuda_check(cudaMemcpyAsync(to.data, from.data, size_t(to.bytes),
                                           cudaMemcpyDeviceToDevice, cuda_stream(beside)));
        }
        if (all.empty()) return;
        nccl_check(ncclGroupStart(), *link);
        for (const Message& m : all) {
            nccl_check(m.send ? ncclSend(m.data, size_t(m.bytes), ncclUint8, m.peer, link->nccl,
                                         cuda_stream(stream))
                              : ncclRecv(m.data, size_t(m.bytes), ncclUint8, m.peer, link->nccl,
                                         cuda_stream(stream)),
                       *link);
        }
        nccl_check(ncclGroupEnd(), *link);
        if (&beside != &stream) stream.wait(beside.record());
    }
};

// Operations that consist of messages: those for which NCCL has no collective, and all operations
// of a group of one rank.
void run_messages(const Operation& x, const Communicator::Impl& group, Stream& stream) {
    Messages messages = {group.rank, group.link, stream};
    bool root = group.rank == x.root;
    auto all_ranks = [&](auto body) {
        for (int r = 0; r < group.size(); ++r) body(r);
    };
    switch (x.kind) {
        case Collective::gather:
            messages.send(x.in, x.in_bytes, x.root);
            if (root)
                all_ranks([&](int r) { messages.recv(x.out + r * x.in_bytes, x.in_bytes, r); });
            break;
        case Collective::scatter:
            if (root)
                all_ranks([&](int r) { messages.send(x.in + r * x.out_bytes, x.out_bytes, r); });
            messages.recv(x.out, x.out_bytes, x.root);
            break;
        case Collective::all_to_all:
            all_ranks([&](int r) {
                messages.send(x.in + x.send_begin[r], x.send_begin[r + 1] - x.send_begin[r], r);
            });
            all_ranks([&](int r) {
                messages.recv(x.out + x.recv_begin[r], x.recv_begin[r + 1] - x.recv_begin[r], r);
            });
            break;
        case Collective::send_recv:
            for (const auto& m : x.messages)
                messages.all.push_back({m.send, m.data, m.bytes, m.peer});
            break;
        default:  // a collective of one rank
            messages.send(x.in, x.in_bytes, group.rank);
            messages.recv(x.out, x.out_bytes, group.rank);
    }
    messages.run();
}

void run_over_nccl(const Operation& x, const Communicator::Impl& group, Stream& of) {
    if (group.size() == 1) return run_messages(x, group, of);
    check(bool(group.link), "NCCL did not start");
    const Link& link = *group.link;
    cudaStream_t stream = cuda_stream(of);
    ncclDataType_t type = type_of(x.dtype);
    ncclRedOp_t op = op_of(x.op);
    size_t in = size_t(x.in_bytes / x.width()), out = size_t(x.out_bytes / x.width());
    bool root = group.rank == x.root;
    switch (x.kind) {
        case Collective::all_reduce:
            if (in > 0)
                nccl_check(ncclAllReduce(x.in, x.out, in, type, op, link.nccl, stream), link);
            return;
        case Collective::reduce:
            if (in > 0)
                nccl_check(ncclReduce(x.in, root ? x.out : nullptr, in, type, op, x.root, link.nccl,
                                      stream),
                           link);
            return;
        case Collective::broadcast:
            if (in > 0)
                nccl_check(ncclBroadcast(x.in, x.out, in, type, x.root, link.nccl, stream), link);
            return;
        case Collective::all_gather:
            if (in > 0) nccl_check(ncclAllGather(x.in, x.out, in, type, link.nccl, stream), link);
            return;
        case Collective::reduce_scatter:
            if (out > 0)
                nccl_check(ncclReduceScatter(x.in, x.out, out, type, op, link.nccl, stream), link);
            return;
        default: return run_messages(x, group, of);
    }
}

}  // namespace

Stream& own_slices() {
    static Stream* const stream = new Stream("own slices");  // lives as long as the process
    return *stream;
}

// ---- the transport ------------------------------------------------------------------------------

namespace transport {

void open(Communicator::Impl& group) {
    if (group.size() == 1) return;
    if (group.number == 0) compare_gpus(group);
    if (sharing) return;
    compute_stream();  // NCCL uses the current device
    cuda_select_device();
    auto link = std::make_shared<Link>(group.name);
    ncclUniqueId id = {};
    if (group.rank == 0) nccl_check(ncclGetUniqueId(&id), *link);
    id = tell_all(group, id).front();
    nccl_check(ncclCommInitRank(&link->nccl, group.size(), id, group.rank), *link);
    links::add(link);
    group.link = std::move(link);
    if (communication_settings().copy_engines) group.link->peers = PeerMemory::open(group);
}

void close() { links::close(); }

bool over_mpi() { return sharing; }

std::shared_ptr<Allocator> symmetric_memory(const Communicator::Impl& group) {
    return group.link && !slow_links().on() ? group.link->peers : nullptr;
}

int64_t open_mailbox(Communicator::Impl& group, int64_t bytes) {
    if (!symmetric_memory(group)) return 0;
    group.mailbox =
        std::make_shared<Communicator::Impl::Mailbox>(group.link->peers, group.rank, bytes);
    return group.mailbox->bytes();
}

// The group's mapped memory if this operation uses the copy engines, otherwise null.
static PeerMemory* copying_peers(const Communicator::Impl& group, const Operation& operation) {
    PeerMemory* const peers = group.link ? group.link->peers.get() : nullptr;
    return copies::fit(operation, peers) ? peers : nullptr;
}

Tensor scratch(const Communicator::Impl& group, Operation& operation) {
    PeerMemory* const peers = copying_peers(group, operation);
    Tensor scratch = peers ? copies::scratch(operation, *peers) : Tensor();
    operation.scratch = static_cast<char*>(scratch.data());
    return scratch;
}

void start(Work::Impl& work, Operation operation, int tag, Stream& stream) {
    check_not_abandoned();
    const Communicator::Impl& group = *work.communicator;
    if (work.asynchronous) stream.wait(compute_stream().record());  // the inputs are ready then
    if (sharing && group.size() > 1) return staged::start(work, operation, tag, stream);
    copies::sum_for(operation, stream);
    if (group.mailbox && group.mailbox->takes(operation))
        return group.mailbox->start(work, operation, stream);
    if (copying_peers(group, operation)) return copies::start(work, operation, stream);
    Timestamp begin = Timestamp::in(stream);
    run_over_nccl(operation, group, stream);
    if (slow_links().on()) {
        const double bytes = slow_link_bytes(operation, group);
        bytes_between_nodes() += std::llround(bytes);
        const double hop = bytes > 0 ? slow_links().hop_seconds : 0;
        wait_for_slow_link(hop + bytes / slow_links().bytes_per_second, cuda_stream(stream));
    }
    work.end = Timestamp::in(stream);
    work.finished = stream.record();
    add_measurement({work.communicator->name, work.kind, begin, work.end, !work.asynchronous, false,
                     work.span});
}

void imagine(Work::Impl& work, Operation operation, double seconds, Stream& stream) {
    if (work.asynchronous) stream.wait(compute_stream().record());
    Timestamp begin = Timestamp::in(stream);
    for (const ImaginedCopy& c : imagined_copies(operation, *work.communicator)) {
        if (c.from)
            cuda_check(cudaMemcpyAsync(c.to, c.from, size_t(c.bytes), cudaMemcpyDeviceToDevice,
                                       cuda_stream(stream)));
        else
            cuda_check(cudaMemsetAsync(c.to, 0, size_t(c.bytes), cuda_stream(stream)));
    }
    wait_in_stream(seconds, cuda_stream(stream));
    work.end = Timestamp::in(stream);
    work.finished = stream.record();
    add_measurement({work.communicator->name, work.kind, begin, work.end, !work.asynchronous, false,
                     work.span});
}

void wait(Work::Impl& work) {
    if (work.staged) return staged::finish(work);
    if (work.unsummed) copies::sum(work);
    if (!work.asynchronous) return;  // the compute stream orders it
    // From here to the end of the call the compute stream is stalled; if the call has ended, it is
    // not.
    add_measurement({work.communicator->name, work.kind, Timestamp::in(compute_stream()), work.end,
                     true, true, nullptr});
    compute_stream().wait(work.finished);
}

bool done(Work::Impl& work) {
    if (work.staged) return staged::done(work);
    if (work.unsummed && std::uncaught_exceptions() == work.exceptions) copies::sum(work);
    return !work.unsummed && work.finished.reached();
}

}  // namespace transport

}  // namespace ultrascale
