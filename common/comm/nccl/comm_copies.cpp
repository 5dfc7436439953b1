#include "comm_copies.h"

#include <algorithm>

#include "comm/mpi/slow_links.h"
#include "copies.h"
#include "core/trace.h"
#include "cuda/sum_slots.h"
#include "peer_memory.h"

namespace ultrascale {

// A reduction whose slices have been sent to their owners, but are not yet summed.
struct Work::Impl::Unsummed {
    Operation operation;
    Stream* stream;
};

namespace copies {

namespace {

std::vector<Work::Impl*>& unsummed() {  // of all groups, in the order of their calls
    static auto& all = *new std::vector<Work::Impl*>;
    return all;
}

PeerMemory& peers_of(const Work::Impl& work) { return *work.communicator->link->peers; }

void give(const Work::Impl& work, char* mine, const char* from, int64_t bytes, Copies& copies) {
    work.communicator->for_each_peer(
        [&](int peer) { copies.add_to_peer(peers_of(work).at(peer, mine), from, bytes); });
    copies.add(mine, from, bytes);
}

// The bytes of a rank's slice in a reduction, a multiple of 16. The last slices of an all-reduce
// may be shorter.
int64_t slice_bytes(const Operation& x, int ranks) {
    return x.kind == Collective::reduce_scatter ? x.out_bytes
                                                : (x.in_bytes + 16 * ranks - 1) / (16 * ranks) * 16;
}
int64_t length_of(const Operation& x, int64_t slice, int rank) {
    return std::clamp<int64_t>(x.in_bytes - rank * slice, 0, slice);
}

// Whether this rank receives, and only into symmetric memory. If so, all ranks make the same call
// (comm.h).
bool rotates(const Operation& x, const PeerMemory& peers) {
    const auto receives = [](const Operation::Message& m) { return !m.send; };
    return std::ranges::any_of(x.messages, receives) &&
           std::ranges::all_of(x.messages, [&](const Operation::Message& m) {
               return m.send || peers.holds(m.data);
           });
}
// A rank's i-th send goes to its peer's i-th receive, whose address corresponds to its own.
void rotate(const Work::Impl& work, const Operation& x, Copies& copies) {
    std::vector<Operation::Message> receives;
    std::ranges::copy_if(x.messages, std::back_inserter(receives),
                         [](const Operation::Message& m) { return !m.send; });
    size_t i = 0;
    for (const Operation::Message& m : x.messages) {
        if (!m.send) continue;
        check(i < receives.size() && receives[i].bytes == m.bytes,
              "with symmetric memory ranks must send as they receive");
        copies.add_to_peer(peers_of(work).at(m.peer, receives[i++].data), m.data, m.bytes);
    }
    check(i == receives.size(), "with symmetric memory ranks must send as they receive");
}

// Queues the copies behind the group's earlier calls. If other ranks may still need the memory that
// is written to, a meeting comes first. `work` is finished when all ranks' copies have arrived.
void copy_in_turn(Work::Impl& work, Copies& copies, bool meet_first, Stream& stream) {
    PeerMemory& peers = peers_of(work);
    const Timestamp begin = Timestamp::in(stream);
    peers.begin_turn(stream);
    if (meet_first) peers.meet(stream);
    copies.queue(stream);
    peers.meet(stream);
    peers.end_turn(stream);
    finish_copies(work, begin, stream);
}

}  // namespace

bool fit(const Operation& x, const PeerMemory* peers) {
    const CommunicationSettings& settings = communication_settings();
    if (!peers || !settings.copy_engines || slow_links().on()) return false;
    int64_t bytes = std::max(x.in_bytes, x.out_bytes);
    for (const Operation::Message& m : x.messages) bytes += m.send ? m.bytes : 0;
    if (x.kind == Collective::all_to_all) bytes = x.average_bytes;
    if (bytes < settings.copies_from_bytes || bytes > settings.copies_up_to_bytes) return false;
    if (x.kind == Collective::all_gather) return peers->holds(x.out);
    if (x.kind == Collective::send_recv) return rotates(x, *peers);
    if (x.kind == Collective::all_to_all) return !x.begin_at_peers.empty() && peers->holds(x.out);
    const bool summed = x.op == Reduce::sum && (x.dtype == DType::fp32 || x.dtype == DType::bf16 ||
                                                x.dtype == DType::fp16);
    if (x.kind == Collective::reduce_scatter) return summed && x.out_bytes % 16 == 0;
    return x.kind == Collective::all_reduce && summed && peers->holds(x.in);
}

Tensor scratch(const Operation& x, PeerMemory& peers) {
    if (x.kind != Collective::all_reduce && x.kind != Collective::reduce_scatter) return {};
    std::vector<Work::Impl*> before;
    std::ranges::copy_if(unsummed(), std::back_inserter(before),
                         [&](Work::Impl* work) { return &peers_of(*work) == &peers; });
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

void start(Work::Impl& work, const Operation& x, Stream& stream) {
    const Communicator::Impl& group = *work.communicator;
    PeerMemory& peers = peers_of(work);
    Copies copies;
    if (x.kind == Collective::all_gather) {
        give(work, x.out + group.rank * x.in_bytes, x.in, x.in_bytes, copies);
        return copy_in_turn(work, copies, true, stream);  // somebody may still read from `out`
    }
    if (x.kind == Collective::send_recv) {
        rotate(work, x, copies);
        return copy_in_turn(work, copies, true, stream);
    }
    if (x.kind == Collective::all_to_all) {
        const auto slice = [&](int r) { return x.send_begin[r + 1] - x.send_begin[r]; };
        group.for_each_peer([&](int peer) {
            copies.add_to_peer(peers.at(peer, x.out) + x.begin_at_peers[size_t(peer)],
                               x.in + x.send_begin[peer], slice(peer));
        });
        copies.add_own(x.out + x.recv_begin[group.rank], x.in + x.send_begin[group.rank],
                       slice(group.rank));
        return copy_in_turn(work, copies, true, stream);
    }
    const int64_t slice = slice_bytes(x, group.size());
    group.for_each_peer([&](int peer) {
        copies.add_to_peer(peers.at(peer, x.scratch) + slot_of(group.rank, peer) * slice,
                           x.in + peer * slice, length_of(x, slice, peer));
    });
    copy_in_turn(work, copies, !peers.met_since_let_go(x.scratch), stream);
    work.unsummed = std::make_shared<Work::Impl::Unsummed>(x, &stream);
    unsummed().push_back(&work);
    if (!work.asynchronous) sum(work);
}

void sum(Work::Impl& work) {
    const auto [x, stream] = *std::exchange(work.unsummed, nullptr);
    std::erase(unsummed(), &work);
    const Communicator::Impl& group = *work.communicator;
    const int64_t slice = slice_bytes(x, group.size()), own = length_of(x, slice, group.rank);
    char* const mine = x.in + group.rank * slice;
    transport::wait(work);  // until the copies have arrived
    const Timestamp begin = Timestamp::in(compute_stream());
    ops::sum_slots(x.kind == Collective::all_reduce ? mine : x.out, mine, x.scratch,
                   slice / x.width(), own / x.width(), x.dtype, group.rank, group.size());
    work.end = Timestamp::in(compute_stream());
    work.finished = compute_stream().record();
    std::shared_ptr<Span> span;
    if (work.span) {  // its bytes were counted with the copies
        span = std::make_shared<Span>(*work.span);
        span->lane = compute_stream().name(), span->bytes = 0;
    }
    add_measurement({work.communicator->name, work.kind, begin, work.end, true, false, span});
    work.tensors.pop_back();  // the scratch
    if (x.kind == Collective::reduce_scatter) return;
    stream->wait(work.finished);
    Copies copies;
    give(work, mine, mine, own, copies);
    copy_in_turn(work, copies, false, *stream);  // everybody's slices have been sent
}

void sum_for(const Operation& x, Stream& stream) {
    const auto overlap = [](const char* a, int64_t a_bytes, const char* b, int64_t b_bytes) {
        return a < b + b_bytes && b < a + a_bytes;
    };
    const auto touches = [&](const Operation& before, const char* data, int64_t bytes) {
        return overlap(before.out, before.out_bytes, data, bytes) ||
               overlap(before.in, before.in_bytes, data, bytes);
    };
    bool any = false;
    for (Work::Impl* work : std::vector<Work::Impl*>(unsummed())) {
        const Operation& before = work->unsummed->operation;
        if (touches(before, x.in, x.in_bytes) || touches(before, x.out, x.out_bytes) ||
            std::ranges::any_of(x.messages, [&](const Operation::Message& m) {
                return touches(before, m.data, m.bytes);
            }))
            sum(*work), any = true;
    }
    if (any) stream.wait(compute_stream().record());
}

}  // namespace copies

}  // namespace ultrascale
