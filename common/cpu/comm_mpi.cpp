// The collectives on the CPU, made of MPI_Isend and MPI_Irecv only.
//
// Reductions do not use MPI_Reduce*: which rank adds first would then depend on the message's size and on the collective.
// Here every element is summed in the order rank 0, 1, ..., n-1 by one rank:
//
//     all-reduce, small     everyone sends everything to everyone, then adds:  1 round,  n (n-1) messages
//     all-reduce, large     slice i of everyone's x goes to rank i  --+
//                           rank i adds the n slices in rank order    |  = reduce-scatter
//                           rank i's sum goes to everyone           --+-> all-gather
//     reduce                the same, but the last step sends to the root only
//
// The others are direct exchanges between each pair of ranks that has something to say.
#include "comm_mpi.h"

#include <algorithm>
#include <cstring>

namespace ultrascale {

namespace {

char* address(const Tensor& tensor) { return static_cast<char*>(tensor.data()); }

void copy(void* to, const void* from, int64_t bytes) {
    if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

// What the three reductions share.
struct Reduction {
    DType dtype;
    Reduce op;
    char* scratch;  // (n-1) slots for the other ranks' slices
    int64_t element_bytes() const { return dtype_bytes(dtype); }
};

struct Slice {
    char* data;
    int64_t count;
};

// One round: slice_for(r) of this rank's data goes to rank r, and this rank's own slice of everyone's is reduced to `out`.
template <class SliceFor>
void reduce_round(Exchange& exchange, const Reduction& reduction, SliceFor slice_for, void* out) {
    Slice own = slice_for(exchange.rank());
    std::vector<const void*> inputs(exchange.size());
    char* slot = reduction.scratch;
    for (int r = 0; r < exchange.size(); ++r) {
        inputs[r] = r == exchange.rank() ? own.data : slot;
        if (r != exchange.rank()) slot += own.count * reduction.element_bytes();
    }
    exchange.for_each_peer([&](int peer) { exchange.recv(const_cast<void*>(inputs[peer]), own.count * reduction.element_bytes(), peer); });
    exchange.for_each_peer([&](int peer) {
        Slice slice = slice_for(peer);
        exchange.send(slice.data, slice.count * reduction.element_bytes(), peer);
    });
    exchange.wait();
    reduce_in_rank_order(out, inputs, own.count, reduction.dtype, reduction.op);
}

// Scratch is made on the host when the call is made, so that memory is counted in the host's order.
Tensor make_scratch(int64_t count, DType dtype) { return count > 0 ? Tensor::empty({count}, dtype, Memory::communication) : Tensor(); }

bool overlap(const Tensor& a, const Tensor& b) { return address(a) < address(b) + b.bytes() && address(b) < address(a) + a.bytes(); }

void check_tensors(std::initializer_list<Tensor> tensors) {
    for (const Tensor& tensor : tensors) check(bool(tensor), "communication of a tensor without storage");
}

void check_rank(int rank, int size) { check(0 <= rank && rank < size, "no such rank in this communicator"); }

// all_reduce (root < 0: everyone wants the sum) and reduce.
Work reduce_to(int root, const std::shared_ptr<Communicator::Impl>& communicator, const Tensor& x, Reduce op, Stream& stream) {
    check_tensors({x});
    int64_t n = communicator->size(), numel = x.numel(), width = dtype_bytes(x.dtype());
    auto wanted_by = [root](int r) { return root < 0 || r == root; };
    bool small = x.bytes() <= communication_settings().small_bytes;
    int64_t chunk = small ? numel : std::min(numel, std::max(n, communication_settings().chunk_bytes / width));
    int64_t slot = !small ? (chunk + n - 1) / n : wanted_by(communicator->rank) ? numel : 0;
    Tensor scratch = make_scratch((n - 1) * slot, x.dtype());
    Reduction reduction = {x.dtype(), op, address(scratch)};
    auto body = [=, data = address(x)](Exchange& exchange) {
        if (small) {
            auto everything = [&](int r) { return Slice{data, wanted_by(r) ? numel : 0}; };
            return reduce_round(exchange, reduction, everything, data);
        }
        for (int64_t begin = 0; begin < numel; begin += chunk) {
            int64_t length = std::min(chunk, numel - begin);
            auto slice = [&](int r) {
                int64_t first = length * r / n, last = length * (r + 1) / n;
                return Slice{data + (begin + first) * width, last - first};
            };
            int me = exchange.rank();
            int64_t bytes = slice(me).count * width;
            char* sum = wanted_by(me) ? slice(me).data : reduction.scratch;
            reduce_round(exchange, reduction, slice, sum);
            exchange.for_each_peer([&](int peer) {
                if (wanted_by(me)) exchange.recv(slice(peer).data, slice(peer).count * width, peer);
            });
            exchange.for_each_peer([&](int peer) {
                if (wanted_by(peer)) exchange.send(sum, bytes, peer);
            });
            exchange.wait();
        }
    };
    Collective kind = root < 0 ? Collective::all_reduce : Collective::reduce;
    return issue(communicator, {kind, x.bytes(), {x, scratch}, root < 0 ? "" : fmt::format(" to {}", root)}, stream, body);
}

}  // namespace

Work Communicator::all_reduce(Tensor x, Reduce op, Stream& stream) const { return reduce_to(-1, impl_, x, op, stream); }

Work Communicator::reduce(Tensor x, int root, Reduce op, Stream& stream) const {
    check_rank(root, size());
    return reduce_to(root, impl_, x, op, stream);
}

Work Communicator::reduce_scatter(Tensor out, Tensor in, Reduce op, Stream& stream) const {
    check_tensors({out, in});
    check(in.dtype() == out.dtype(), "reduce_scatter: two dtypes");
    check(in.numel() == size() * out.numel(), "reduce_scatter: in must hold size() times as many elements as out");
    int64_t numel = out.numel(), width = dtype_bytes(in.dtype());
    check(!overlap(out, in) || address(out) == address(in) + rank() * out.bytes(),
          "reduce_scatter: out may only share this rank's slice of in");
    int64_t chunk = std::clamp<int64_t>(communication_settings().chunk_bytes / width / size(), 1, std::max<int64_t>(1, numel));
    Tensor scratch = make_scratch((size() - 1) * chunk, in.dtype());
    Reduction reduction = {in.dtype(), op, address(scratch)};
    auto body = [=, to = address(out), from = address(in)](Exchange& exchange) {
        for (int64_t begin = 0; begin < numel; begin += chunk) {
            int64_t length = std::min(chunk, numel - begin);
            auto slice = [&](int r) { return Slice{from + (r * numel + begin) * width, length}; };
            reduce_round(exchange, reduction, slice, to + begin * width);
        }
    };
    return issue(impl_, {Collective::reduce_scatter, in.bytes(), {out, in, scratch}}, stream, body);
}

// The root speaks to every rank itself: within a node that costs no more copies than a tree.
Work Communicator::broadcast(Tensor x, int root, Stream& stream) const {
    check_tensors({x});
    check_rank(root, size());
    auto body = [root, data = address(x), bytes = x.bytes()](Exchange& exchange) {
        if (exchange.rank() == root) {
            exchange.for_each_peer([&](int peer) { exchange.send(data, bytes, peer); });
        } else {
            exchange.recv(data, bytes, root);
        }
        exchange.wait();
    };
    return issue(impl_, {Collective::broadcast, x.bytes(), {x}, fmt::format(" from {}", root)}, stream, body);
}

Work Communicator::all_gather(Tensor out, Tensor in, Stream& stream) const {
    check_tensors({out, in});
    check(in.dtype() == out.dtype(), "all_gather: two dtypes");
    check(out.numel() == size() * in.numel(), "all_gather: out must hold size() times as many elements as in");
    check(!overlap(out, in) || address(in) == address(out) + rank() * in.bytes(), "all_gather: in may only share this rank's slice of out");
    auto body = [to = address(out), from = address(in), bytes = in.bytes()](Exchange& exchange) {
        exchange.for_each_peer([&](int peer) { exchange.recv(to + peer * bytes, bytes, peer); });
        exchange.for_each_peer([&](int peer) { exchange.send(from, bytes, peer); });
        copy(to + exchange.rank() * bytes, from, bytes);
        exchange.wait();
    };
    return issue(impl_, {Collective::all_gather, out.bytes(), {out, in}}, stream, body);
}

Work Communicator::gather(Tensor out, Tensor in, int root, Stream& stream) const {
    check_rank(root, size());
    check_tensors({in, rank() == root ? out : in});
    if (rank() == root) {
        check(in.dtype() == out.dtype(), "gather: two dtypes");
        check(out.numel() == size() * in.numel(), "gather: out must hold size() times as many elements as in");
        check(!overlap(out, in) || address(in) == address(out) + root * in.bytes(), "gather: in may only share this rank's slice of out");
    } else {
        out = {};
    }
    auto body = [root, to = address(out), from = address(in), bytes = in.bytes()](Exchange& exchange) {
        if (exchange.rank() == root) {
            exchange.for_each_peer([&](int peer) { exchange.recv(to + peer * bytes, bytes, peer); });
            copy(to + root * bytes, from, bytes);
        } else {
            exchange.send(from, bytes, root);
        }
        exchange.wait();
    };
    return issue(impl_, {Collective::gather, size() * in.bytes(), {out, in}, fmt::format(" to {}", root)}, stream, body);
}

Work Communicator::scatter(Tensor out, Tensor in, int root, Stream& stream) const {
    check_rank(root, size());
    check_tensors({out, rank() == root ? in : out});
    if (rank() == root) {
        check(in.dtype() == out.dtype(), "scatter: two dtypes");
        check(in.numel() == size() * out.numel(), "scatter: in must hold size() times as many elements as out");
        check(!overlap(out, in) || address(out) == address(in) + root * out.bytes(), "scatter: out may only share this rank's slice of in");
    } else {
        in = {};
    }
    auto body = [root, to = address(out), from = address(in), bytes = out.bytes()](Exchange& exchange) {
        if (exchange.rank() == root) {
            exchange.for_each_peer([&](int peer) { exchange.send(from + peer * bytes, bytes, peer); });
            copy(to, from + root * bytes, bytes);
        } else {
            exchange.recv(to, bytes, root);
        }
        exchange.wait();
    };
    return issue(impl_, {Collective::scatter, size() * out.bytes(), {out, in}, fmt::format(" from {}", root)}, stream, body);
}

Work Communicator::all_to_all(Tensor out, Tensor in, Stream& stream) const {
    check(out.numel() == in.numel(), "all_to_all: out must hold as many elements as in");
    check(in.numel() % size() == 0, "all_to_all: the elements cannot be shared out equally; give counts");
    std::vector<int64_t> slices(size(), in.numel() / size());
    return all_to_all(std::move(out), std::move(in), slices, slices, stream);
}

Work Communicator::all_to_all(Tensor out, Tensor in, std::vector<int64_t> send_counts, std::vector<int64_t> recv_counts,
                              Stream& stream) const {
    check_tensors({out, in});
    check(in.dtype() == out.dtype(), "all_to_all: two dtypes");
    check(int(send_counts.size()) == size() && int(recv_counts.size()) == size(), "all_to_all: one count for each rank");
    check(!overlap(out, in), "all_to_all: out and in must not overlap");
    int64_t width = dtype_bytes(in.dtype());
    std::vector<int64_t> send_begin(size() + 1), recv_begin(size() + 1);
    for (int r = 0; r < size(); ++r) {
        check(send_counts[r] >= 0 && recv_counts[r] >= 0, "all_to_all: a negative count");
        send_begin[r + 1] = send_begin[r] + send_counts[r] * width;
        recv_begin[r + 1] = recv_begin[r] + recv_counts[r] * width;
    }
    check(send_begin.back() == in.bytes() && recv_begin.back() == out.bytes(), "all_to_all: counts do not add up to the tensors");
    check(send_counts[rank()] == recv_counts[rank()], "all_to_all: two counts for this rank's own slice");
    auto body = [=, to = address(out), from = address(in)](Exchange& exchange) {
        exchange.for_each_peer([&](int peer) { exchange.recv(to + recv_begin[peer], recv_begin[peer + 1] - recv_begin[peer], peer); });
        exchange.for_each_peer([&](int peer) { exchange.send(from + send_begin[peer], send_begin[peer + 1] - send_begin[peer], peer); });
        int me = exchange.rank();
        copy(to + recv_begin[me], from + send_begin[me], send_begin[me + 1] - send_begin[me]);
        exchange.wait();
    };
    return issue(impl_, {Collective::all_to_all, in.bytes(), {out, in}}, stream, body);
}

Work Communicator::send_recv(std::vector<Transfer> transfers, Stream& stream) const {
    struct Message {
        bool send;
        char* data;
        int64_t bytes;
        int peer, tag;
    };
    for (const Transfer& transfer : transfers) {  // before any of them takes its number
        check_tensors({transfer.tensor});
        check_rank(transfer.peer, size());
    }
    Call call = {Collective::send_recv, 0, {}};
    std::vector<Message> messages;
    for (const Transfer& transfer : transfers) {
        bool send = transfer.direction == Transfer::send;
        int tag = send ? impl_->send_tag(transfer.peer) : impl_->receive_tag(transfer.peer);
        messages.push_back({send, address(transfer.tensor), transfer.tensor.bytes(), transfer.peer, tag});
        call.tensors.push_back(transfer.tensor);
        call.bytes += send ? transfer.tensor.bytes() : 0;
        call.detail += fmt::format("{} {} {}", call.detail.empty() ? "" : ",", send ? "to" : "from", transfer.peer);
    }
    auto body = [messages = std::move(messages)](Exchange& exchange) {
        for (const Message& m : messages) {
            if (m.send)
                exchange.send(m.data, m.bytes, m.peer, m.tag);
            else
                exchange.recv(m.data, m.bytes, m.peer, m.tag);
        }
        exchange.wait();
    };
    return issue(impl_, std::move(call), stream, body);
}

Work Communicator::send(Tensor x, int to, Stream& stream) const { return send_recv({{Transfer::send, x, to}}, stream); }
Work Communicator::recv(Tensor x, int from, Stream& stream) const { return send_recv({{Transfer::recv, x, from}}, stream); }

void Communicator::barrier() const {
    char sent = 0;
    std::vector<char> received(size());
    auto body = [&](Exchange& exchange) {
        exchange.for_each_peer([&](int peer) { exchange.recv(&received[peer], 1, peer); });
        exchange.for_each_peer([&](int peer) { exchange.send(&sent, 1, peer); });
        exchange.wait();
    };
    issue(impl_, {Collective::barrier, 0, {}}, compute_stream(), body);
}

}  // namespace ultrascale
