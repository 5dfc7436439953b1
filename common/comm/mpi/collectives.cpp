// The collectives over MPI on host memory, built from MPI_Isend and MPI_Irecv only.
//
// Reductions do not use MPI_Reduce*, whose order of summation depends on the message's size and on
// the collective. Here one rank sums each element in the order of ranks 0, 1, ..., n-1:
//
//     all-reduce, small     everyone sends everything to everyone, then adds:
//                           1 round, n (n-1) messages
//     all-reduce, large     slice i of everyone's x goes to rank i  --+
//                           rank i adds the n slices in rank order    |  = reduce-scatter
//                           rank i's sum goes to everyone           --+-> all-gather
//     reduce                the same, but the last step sends to the root only
//
// The others are direct exchanges between each pair of ranks that has data for each other.
#include <algorithm>
#include <cstring>

#include "comm_mpi.h"

namespace ultrascale {

namespace {

void copy(void* to, const void* from, int64_t bytes) {
    if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

struct Slice {
    char* data;
    int64_t count;
};

// One round: slice_for(r) of this rank's data goes to rank r, and the slices that all ranks have
// for this rank are reduced to `out`.
template <class SliceFor>
void reduce_round(Exchange& exchange, const Operation& reduction, SliceFor slice_for, void* out) {
    Slice own = slice_for(exchange.rank());
    std::vector<const void*> inputs(exchange.size());
    char* slot = reduction.scratch;  // n-1 slots for the other ranks' slices
    for (int r = 0; r < exchange.size(); ++r) {
        inputs[r] = r == exchange.rank() ? own.data : slot;
        if (r != exchange.rank()) slot += own.count * reduction.width();
    }
    exchange.for_each_peer([&](int peer) {
        exchange.recv(const_cast<void*>(inputs[peer]), own.count * reduction.width(), peer);
    });
    exchange.for_each_peer([&](int peer) {
        Slice slice = slice_for(peer);
        exchange.send(slice.data, slice.count * reduction.width(), peer);
    });
    exchange.wait();
    reduce_in_rank_order(out, inputs, own.count, reduction.dtype, reduction.op);
}

// all-reduce (root < 0: everyone wants the sum) and reduce.
void reduce_to(const Operation& x, Exchange& exchange) {
    int n = exchange.size(), me = exchange.rank();
    int64_t numel = x.in_bytes / x.width();
    auto wanted_by = [&](int r) { return x.root < 0 || r == x.root; };
    if (x.small) {
        auto everything = [&](int r) { return Slice{x.in, wanted_by(r) ? numel : 0}; };
        return reduce_round(exchange, x, everything, x.out);
    }
    for (int64_t begin = 0; begin < numel; begin += x.chunk) {
        int64_t length = std::min(x.chunk, numel - begin);
        auto slice = [&](int r) {
            int64_t first = length * r / n, last = length * (r + 1) / n;
            return Slice{x.in + (begin + first) * x.width(), last - first};
        };
        int64_t bytes = slice(me).count * x.width();
        char* sum = wanted_by(me) ? slice(me).data : x.scratch;
        reduce_round(exchange, x, slice, sum);
        exchange.for_each_peer([&](int peer) {
            if (wanted_by(me)) exchange.recv(slice(peer).data, slice(peer).count * x.width(), peer);
        });
        exchange.for_each_peer([&](int peer) {
            if (wanted_by(peer)) exchange.send(sum, bytes, peer);
        });
        exchange.wait();
    }
}

void reduce_scatter(const Operation& x, Exchange& exchange) {
    int64_t numel = x.out_bytes / x.width();
    for (int64_t begin = 0; begin < numel; begin += x.chunk) {
        int64_t length = std::min(x.chunk, numel - begin);
        auto slice = [&](int r) { return Slice{x.in + (r * numel + begin) * x.width(), length}; };
        reduce_round(exchange, x, slice, x.out + begin * x.width());
    }
}

// The root sends to every rank itself: within a node a tree would save no copies.
void broadcast(const Operation& x, Exchange& exchange) {
    if (exchange.rank() == x.root) {
        exchange.for_each_peer([&](int peer) { exchange.send(x.in, x.in_bytes, peer); });
    } else {
        exchange.recv(x.out, x.out_bytes, x.root);
    }
    exchange.wait();
}

void all_gather(const Operation& x, Exchange& exchange) {
    exchange.for_each_peer(
        [&](int peer) { exchange.recv(x.out + peer * x.in_bytes, x.in_bytes, peer); });
    exchange.for_each_peer([&](int peer) { exchange.send(x.in, x.in_bytes, peer); });
    copy(x.out + exchange.rank() * x.in_bytes, x.in, x.in_bytes);
    exchange.wait();
}

void gather(const Operation& x, Exchange& exchange) {
    if (exchange.rank() == x.root) {
        exchange.for_each_peer(
            [&](int peer) { exchange.recv(x.out + peer * x.in_bytes, x.in_bytes, peer); });
        copy(x.out + x.root * x.in_bytes, x.in, x.in_bytes);
    } else {
        exchange.send(x.in, x.in_bytes, x.root);
    }
    exchange.wait();
}

void scatter(const Operation& x, Exchange& exchange) {
    if (exchange.rank() == x.root) {
        exchange.for_each_peer(
            [&](int peer) { exchange.send(x.in + peer * x.out_bytes, x.out_bytes, peer); });
        copy(x.out, x.in + x.root * x.out_bytes, x.out_bytes);
    } else {
        exchange.recv(x.out, x.out_bytes, x.root);
    }
    exchange.wait();
}

void all_to_all(const Operation& x, Exchange& exchange) {
    const auto &to = x.recv_begin, &from = x.send_begin;
    exchange.for_each_peer(
        [&](int peer) { exchange.recv(x.out + to[peer], to[peer + 1] - to[peer], peer); });
    exchange.for_each_peer(
        [&](int peer) { exchange.send(x.in + from[peer], from[peer + 1] - from[peer], peer); });
    int me = exchange.rank();
    copy(x.out + to[me], x.in + from[me], from[me + 1] - from[me]);
    exchange.wait();
}

void barrier(Exchange& exchange) {
    char sent = 0;
    std::vector<char> received(exchange.size());
    exchange.for_each_peer([&](int peer) { exchange.recv(&received[peer], 1, peer); });
    exchange.for_each_peer([&](int peer) { exchange.send(&sent, 1, peer); });
    exchange.wait();
}

}  // namespace

void post_messages(const std::vector<Operation::Message>& messages, Exchange& exchange) {
    for (const Operation::Message& m : messages) {
        if (m.send)
            exchange.send(m.data, m.bytes, m.peer, m.tag);
        else
            exchange.recv(m.data, m.bytes, m.peer, m.tag);
    }
}

void plan_reduction(Operation& x, int rank, int size) {
    const CommunicationSettings& settings = communication_settings();
    int64_t n = size, numel = x.out_bytes / x.width(), slot = 0;
    if (x.kind == Collective::reduce_scatter) {
        x.chunk = slot = std::clamp<int64_t>(settings.chunk_bytes / x.width() / n, 1,
                                             std::max<int64_t>(1, numel));
    } else if (x.kind == Collective::all_reduce || x.kind == Collective::reduce) {
        x.small = x.out_bytes <= settings.small_bytes;
        x.chunk = x.small ? numel : std::min(numel, std::max(n, settings.chunk_bytes / x.width()));
        bool wanted = x.root < 0 || x.root == rank;
        slot = !x.small ? (x.chunk + n - 1) / n : wanted ? numel : 0;
    }
    x.scratch_count = (n - 1) * slot;
}

void run_over_mpi(const Operation& x, Exchange& exchange) {
    exchange.set_name(collective_names[size_t(x.kind)]);
    switch (x.kind) {
        case Collective::all_reduce:
        case Collective::reduce: return reduce_to(x, exchange);
        case Collective::broadcast: return broadcast(x, exchange);
        case Collective::all_gather: return all_gather(x, exchange);
        case Collective::reduce_scatter: return reduce_scatter(x, exchange);
        case Collective::gather: return gather(x, exchange);
        case Collective::scatter: return scatter(x, exchange);
        case Collective::all_to_all: return all_to_all(x, exchange);
        case Collective::send_recv: post_messages(x.messages, exchange); return exchange.wait();
        case Collective::barrier: return barrier(exchange);
    }
}

}  // namespace ultrascale
