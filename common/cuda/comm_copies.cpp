#include "comm_copies.h"

#include <algorithm>

#include "../mpi/slow_links.h"
#include "../trace.h"
#include "peer_memory.h"
#include "sum_slots.h"

namespace ultrascale {

// A reduction whose slices are with their owners, but not yet summed.
struct Work::Impl::Unsummed {
    Operation operation;
    int64_t slice;  // bytes of a rank's slice; the last ones may be shorter
    int64_t bytes;  // for the trace
    Stream* stream;
};

namespace copies {

namespace {

std::vector<Work::Impl*>& unsummed() {  // of all groups, in the order of their calls
    static auto& all = *new std::vector<Work::Impl*>;
    return all;
}

PeerMemory& peers_of(const Work::Impl& work) { return *work.communicator->link->peers; }

void copy(void* to, const void* from, int64_t bytes, Stream& stream) {
    if (bytes > 0 && to != from) cuda_check(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToDevice, cuda_stream(stream)));
}

// Calls body(peer) for all others, the next one first.
template <class Body>
void for_each_peer(const Communicator::Impl& group, Body body) {
    for (int i = 1; i < group.size(); ++i) body((group.rank + i) % group.size());
}

int slot(int from, int at) { return from < at ? from : from - 1; }  // a rank's own slice stays where it is

// This rank's slice of `out` goes to everybody's.
void give(const Work::Impl& work, char* mine, const char* from, int64_t bytes, Stream& stream) {
    for_each_peer(*work.communicator, [&](int peer) { copy(peers_of(work).at(peer, mine), from, bytes, stream); });
    copy(mine, from, bytes, stream);
}

int64_t slice_bytes(const Operation& x, int ranks) {  // of a reduction; multiples of 16
    return x.kind == Collective::reduce_scatter ? x.out_bytes : (x.in_bytes + 16 * ranks - 1) / (16 * ranks) * 16;
}
int64_t length_of(const Operation& x, int64_t slice, int rank) { return std::clamp<int64_t>(x.in_bytes - rank * slice, 0, slice); }

void measure(const Work::Impl& work, const Timestamp& begin, const Timestamp& end, const Stream& stream, int64_t bytes) {
    add_measurement({work.kind, begin, end, !work.asynchronous, false, trace_recording() ? stream.name() : "", bytes});
}

}  // namespace

bool fit(const Operation& x, int ranks, const PeerMemory* peers) {
    const CommunicationSettings& settings = communication_settings();
    if (!peers || !settings.copy_engines || slow_links().ranks_per_node > 0) return false;
    const int64_t bytes = std::max(x.in_bytes, x.out_bytes);
    if (bytes < settings.copies_from_bytes || bytes > settings.copies_up_to_bytes) return false;
    if (x.kind == Collective::all_gather) return peers->holds(x.out);
    const bool summed = x.op == Reduce::sum && (x.dtype == DType::fp32 || x.dtype == DType::bf16 || x.dtype == DType::fp16);
    if (x.kind == Collective::reduce_scatter) return summed && x.out_bytes % 16 == 0 && x.in_bytes == ranks * x.out_bytes;
    return x.kind == Collective::all_reduce && summed && peers->holds(x.in);
}

Tensor scratch(const Operation& x, PeerMemory& peers) {
    if (x.kind == Collective::all_gather) return {};
    std::vector<Work::Impl*> before;
    std::ranges::copy_if(unsummed(), std::back_inserter(before), [&](Work::Impl* work) { return &peers_of(*work) == &peers; });
    const int64_t bytes = slice_bytes(x, peers.ranks()) * (peers.ranks() - 1);
    int64_t held = bytes;
    for (const Work::Impl* work : before) held += work->tensors.back().bytes();
    for (Work::Impl* work : before) {  // the oldest first, on all ranks
        if (held <= communication_settings().copies_unsummed_bytes) break;
        held -= work->tensors.back().bytes();
        sum(*work);
    }
    return Tensor::empty({bytes / 4}, DType::int32, Memory::workspace, peers.shared_from_this());
}

void start(Work::Impl& work, const Operation& x, int64_t bytes, Stream& stream) {
    const Communicator::Impl& group = *work.communicator;
    PeerMemory& peers = peers_of(work);
    const Timestamp begin = Timestamp::in(stream);
    peers.begin_turn(stream);
    peers.meet(stream);  // what everybody writes to is free everywhere
    const int64_t slice = slice_bytes(x, group.size());
    if (x.kind == Collective::all_gather) {
        give(work, x.out + group.rank * x.in_bytes, x.in, x.in_bytes, stream);
    } else {
        for_each_peer(group, [&](int peer) {
            copy(peers.at(peer, x.scratch) + slot(group.rank, peer) * slice, x.in + peer * slice, length_of(x, slice, peer), stream);
        });
    }
    peers.meet(stream);  // everything has come
    peers.end_turn(stream);
    work.end = Timestamp::in(stream);
    work.finished = stream.record();
    measure(work, begin, work.end, stream, bytes);
    if (x.kind == Collective::all_gather) return;
    work.unsummed = std::make_shared<Work::Impl::Unsummed>(x, slice, bytes, &stream);
    unsummed().push_back(&work);
    if (!work.asynchronous) sum(work);
}

void sum(Work::Impl& work) {
    const auto unsummed_ = std::exchange(work.unsummed, nullptr);
    std::erase(unsummed(), &work);
    const auto& [x, slice, bytes, stream] = *unsummed_;
    const Communicator::Impl& group = *work.communicator;
    const int64_t own = length_of(x, slice, group.rank);
    char* const mine = x.in + group.rank * slice;
    if (work.asynchronous) add_measurement({work.kind, Timestamp::in(compute_stream()), work.end, true, true, "", 0});
    compute_stream().wait(work.finished);
    const Timestamp begin = Timestamp::in(compute_stream());
    ops::sum_slots(x.kind == Collective::all_reduce ? mine : x.out, mine, x.scratch, slice / x.width(), own / x.width(), x.dtype,
                   group.rank, group.size());
    work.end = Timestamp::in(compute_stream());
    work.finished = compute_stream().record();
    add_measurement({work.kind, begin, work.end, true, false, trace_recording() ? "compute" : "", 0});
    work.tensors.pop_back();  // the scratch
    if (x.kind == Collective::reduce_scatter) return;

    // All slices have been sent, so they may be written to.
    stream->wait(work.finished);
    PeerMemory& peers = peers_of(work);
    const Timestamp second = Timestamp::in(*stream);
    peers.begin_turn(*stream);
    give(work, mine, mine, own, *stream);
    peers.meet(*stream);
    peers.end_turn(*stream);
    work.end = Timestamp::in(*stream);
    work.finished = stream->record();
    measure(work, second, work.end, *stream, bytes);
}

void sum_for(const Operation& x, Stream& stream) {
    const auto touches = [&](const Work::Impl* work) {
        const Operation& before = work->unsummed->operation;
        const auto meets = [&](const char* begin, int64_t bytes) {
            const auto overlap = [&](const char* other, int64_t length) { return begin < other + length && other < begin + bytes; };
            return overlap(before.out, before.out_bytes) || overlap(before.in, before.in_bytes);
        };
        return meets(x.in, x.in_bytes) || meets(x.out, x.out_bytes) ||
               std::ranges::any_of(x.messages, [&](const Operation::Message& m) { return meets(m.data, m.bytes); });
    };
    bool any = false;
    for (Work::Impl* work : std::vector<Work::Impl*>(unsummed()))
        if (work->unsummed && touches(work)) sum(*work), any = true;
    if (any) stream.wait(compute_stream().record());
}

}  // namespace copies

}  // namespace ultrascale
