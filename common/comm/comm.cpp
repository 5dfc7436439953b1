// The calls of comm.h. Each checks its arguments, and describes the operation and what is counted
// for it; comm_issue.cpp does the rest.
#include "comm.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "comm_issue.h"

namespace ultrascale {

std::shared_ptr<Allocator> Communicator::symmetric_memory() const {
    if (impl_->imagined) return nullptr;
    impl_->open();
    return transport::symmetric_memory(*impl_);
}

int64_t Communicator::open_mailbox(int64_t bytes) const {
    if (impl_->imagined) return 0;
    impl_->open();
    return transport::open_mailbox(*impl_, bytes);
}

void use_copy_engines(bool use) { communication_settings().copy_engines = use; }

namespace {

char* address(const Tensor& tensor) { return static_cast<char*>(tensor.data()); }

Operation operation_on(Collective kind, const Tensor& out, const Tensor& in, int root = -1,
                       Reduce op = Reduce::sum) {
    return {.kind = kind,
            .out = address(out),
            .in = address(in),
            .out_bytes = out.bytes(),
            .in_bytes = in.bytes(),
            .dtype = in ? in.dtype() : out.dtype(),
            .op = op,
            .root = root};
}

bool overlap(const Tensor& a, const Tensor& b) {
    return address(a) < address(b) + b.bytes() && address(b) < address(a) + a.bytes();
}

void check_tensors(std::initializer_list<Tensor> tensors) {
    for (const Tensor& tensor : tensors)
        check(bool(tensor), "communication of a tensor without storage");
}

void check_rank(int rank, int size) {
    check(0 <= rank && rank < size, "no such rank in this communicator");
}

}  // namespace

Work Communicator::all_reduce(Tensor x, Reduce op, Stream& stream) const {
    check_tensors({x});
    return issue(impl_, operation_on(Collective::all_reduce, x, x, -1, op), {x.bytes(), {x}},
                 stream);
}

Work Communicator::reduce(Tensor x, int root, Reduce op, Stream& stream) const {
    check_rank(root, size());
    check_tensors({x});
    return issue(impl_, operation_on(Collective::reduce, x, x, root, op),
                 {x.bytes(), {x}, fmt::format(" to {}", root)}, stream);
}

Work Communicator::reduce_scatter(Tensor out, Tensor in, Reduce op, Stream& stream) const {
    check_tensors({out, in});
    check(in.dtype() == out.dtype(), "reduce_scatter: two dtypes");
    check(in.numel() == size() * out.numel(),
          "reduce_scatter: in must hold size() times as many elements as out");
    check(!overlap(out, in) || address(out) == address(in) + rank() * out.bytes(),
          "reduce_scatter: out may only share this rank's slice of in");
    return issue(impl_, operation_on(Collective::reduce_scatter, out, in, -1, op),
                 {in.bytes(), {out, in}}, stream);
}

Work Communicator::broadcast(Tensor x, int root, Stream& stream) const {
    check_tensors({x});
    check_rank(root, size());
    return issue(impl_, operation_on(Collective::broadcast, x, x, root),
                 {x.bytes(), {x}, fmt::format(" from {}", root)}, stream);
}

Work Communicator::all_gather(Tensor out, Tensor in, Stream& stream) const {
    check_tensors({out, in});
    check(in.dtype() == out.dtype(), "all_gather: two dtypes");
    check(out.numel() == size() * in.numel(),
          "all_gather: out must hold size() times as many elements as in");
    check(!overlap(out, in) || address(in) == address(out) + rank() * in.bytes(),
          "all_gather: in may only share this rank's slice of out");
    return issue(impl_, operation_on(Collective::all_gather, out, in), {out.bytes(), {out, in}},
                 stream);
}

Work Communicator::gather(Tensor out, Tensor in, int root, Stream& stream) const {
    check_rank(root, size());
    check_tensors({in, rank() == root ? out : in});
    if (rank() == root) {
        check(in.dtype() == out.dtype(), "gather: two dtypes");
        check(out.numel() == size() * in.numel(),
              "gather: out must hold size() times as many elements as in");
        check(!overlap(out, in) || address(in) == address(out) + root * in.bytes(),
              "gather: in may only share this rank's slice of out");
    } else {
        out = {};
    }
    Call call = {size() * in.bytes(), {out, in}, fmt::format(" to {}", root)};
    return issue(impl_, operation_on(Collective::gather, out, in, root), std::move(call), stream);
}

Work Communicator::scatter(Tensor out, Tensor in, int root, Stream& stream) const {
    check_rank(root, size());
    check_tensors({out, rank() == root ? in : out});
    if (rank() == root) {
        check(in.dtype() == out.dtype(), "scatter: two dtypes");
        check(in.numel() == size() * out.numel(),
              "scatter: in must hold size() times as many elements as out");
        check(!overlap(out, in) || address(out) == address(in) + root * out.bytes(),
              "scatter: out may only share this rank's slice of in");
    } else {
        in = {};
    }
    Call call = {size() * out.bytes(), {out, in}, fmt::format(" from {}", root)};
    return issue(impl_, operation_on(Collective::scatter, out, in, root), std::move(call), stream);
}

Work Communicator::all_to_all(Tensor out, Tensor in, Stream& stream) const {
    check(out.numel() == in.numel(), "all_to_all: out must hold as many elements as in");
    check(in.numel() % size() == 0,
          "all_to_all: the elements cannot be divided equally; give counts");
    std::vector<int64_t> slices(size(), in.numel() / size());
    return all_to_all(std::move(out), std::move(in), slices, slices, stream);
}

namespace {

// `all_counts`: every rank's counts (comm.h), or empty.
Work uneven_all_to_all(const std::shared_ptr<Communicator::Impl>& group, const Tensor& out,
                       const Tensor& in, const std::vector<int64_t>& send_counts,
                       const std::vector<int64_t>& recv_counts,
                       const std::vector<int64_t>& all_counts, Stream& stream) {
    const size_t n = size_t(group->size()), me = size_t(group->rank);
    check_tensors({out, in});
    check(in.dtype() == out.dtype(), "all_to_all: two dtypes");
    check(send_counts.size() == n && recv_counts.size() == n,
          "all_to_all: one count for each rank");
    check(!overlap(out, in), "all_to_all: out and in must not overlap");
    Operation operation = operation_on(Collective::all_to_all, out, in);
    std::vector<int64_t> send_begin(n + 1), recv_begin(n + 1);
    for (size_t r = 0; r < n; ++r) {
        check(send_counts[r] >= 0 && recv_counts[r] >= 0, "all_to_all: a negative count");
        send_begin[r + 1] = send_begin[r] + send_counts[r] * operation.width();
        recv_begin[r + 1] = recv_begin[r] + recv_counts[r] * operation.width();
    }
    check(send_begin.back() == in.bytes() && recv_begin.back() == out.bytes(),
          "all_to_all: counts do not add up to the tensors");
    check(send_counts[me] == recv_counts[me],
          "all_to_all: different counts for this rank's own slice");
    operation.send_begin = std::move(send_begin);
    operation.recv_begin = std::move(recv_begin);
    for (size_t peer = 0; peer < n && !all_counts.empty(); ++peer) {
        int64_t before = 0;  // elements that lower ranks send to this peer
        for (size_t r = 0; r < me; ++r) before += all_counts[r * n + peer];
        operation.begin_at_peers.push_back(before * operation.width());
    }
    operation.average_bytes =
        std::reduce(all_counts.begin(), all_counts.end()) * operation.width() / int64_t(n);
    Call call = {in.bytes(), {out, in}};
    call.sent = double(in.bytes() - send_counts[me] * operation.width());
    return issue(group, std::move(operation), std::move(call), stream);
}

}  // namespace

Work Communicator::all_to_all(Tensor out, Tensor in, std::vector<int64_t> send_counts,
                              std::vector<int64_t> recv_counts, Stream& stream) const {
    return uneven_all_to_all(impl_, out, in, send_counts, recv_counts, {}, stream);
}

Work Communicator::all_to_all(Tensor out, Tensor in, const std::vector<int64_t>& counts,
                              Stream& stream) const {
    const size_t n = size_t(size());
    check(counts.size() == n * n, "all_to_all: the counts of all pairs of ranks");
    std::vector<int64_t> send_counts, recv_counts;
    for (size_t r = 0; r < n; ++r) {
        send_counts.push_back(counts[size_t(rank()) * n + r]);
        recv_counts.push_back(counts[r * n + size_t(rank())]);
    }
    return uneven_all_to_all(impl_, out, in, send_counts, recv_counts, counts, stream);
}

Work Communicator::send_recv(std::vector<Transfer> transfers, Stream& stream) const {
    for (const Transfer& transfer : transfers) {  // checks all before any of them takes its number
        check_tensors({transfer.tensor});
        check_rank(transfer.peer, size());
    }
    Operation operation = {.kind = Collective::send_recv};
    Call call = {.bytes = 0, .tensors = {}, .sent = 0};
    std::vector<std::string> peers;  // each named once
    for (const Transfer& transfer : transfers) {
        bool send = transfer.direction == Transfer::send;
        const int tag = impl_->imagined ? 0
                        : send          ? impl_->send_tag(transfer.peer)
                                        : impl_->receive_tag(transfer.peer);
        operation.messages.push_back(
            {send, address(transfer.tensor), transfer.tensor.bytes(), transfer.peer, tag});
        call.tensors.push_back(transfer.tensor);
        call.bytes += send ? transfer.tensor.bytes() : 0;
        *call.sent += send && transfer.peer != rank() ? double(transfer.tensor.bytes()) : 0;
        const std::string where = fmt::format(" {} {}", send ? "to" : "from", transfer.peer);
        if (std::ranges::find(peers, where) == peers.end()) peers.push_back(where);
    }
    call.detail = fmt::format("{}", fmt::join(peers, ","));
    return issue(impl_, std::move(operation), std::move(call), stream);
}

Work Communicator::send(Tensor x, int to, Stream& stream) const {
    return send_recv({{Transfer::send, x, to}}, stream);
}
Work Communicator::recv(Tensor x, int from, Stream& stream) const {
    return send_recv({{Transfer::recv, x, from}}, stream);
}

double largest_of_ranks(const Communicator& ranks, double value) {
    const Tensor x = Tensor::from_host<double>(std::vector<double>{value}, {1}, Memory::workspace);
    ranks.all_reduce(x, Reduce::max);
    return x.to_host<double>()[0];
}
bool on_all_ranks(const Communicator& ranks, bool ok) { return largest_of_ranks(ranks, !ok) == 0; }

}  // namespace ultrascale
