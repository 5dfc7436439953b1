// Communication between ranks that share a GPU, which NCCL does not allow. It goes through host
// memory and MPI.
//
// A call waits for its inputs, copies them to the host, communicates, and copies the result back
// before it returns. Only an asynchronous send_recv returns as soon as its messages are posted,
// because ranks rely on that: otherwise two ranks that each send and then receive would deadlock.
// Work::wait() finishes it, or the next call on its stream that reads anything. The host does all
// of this itself, so nothing is computed meanwhile.
//
// It is meant for trying out a chapter on one GPU, not for speed. Only one thread of a process may
// communicate.
#include <algorithm>
#include <optional>

#include "comm_nccl.h"
#include "core/trace.h"

namespace ultrascale {

struct Work::Impl::Staged {
    Operation host;  // with the addresses of the copies
    std::vector<char> in, out, scratch;
    std::vector<std::vector<char>> messages;
    std::vector<char*> devices;  // the messages' addresses on the device
    Exchange exchange;
    std::string group;  // its name
    Stream* stream;
    std::shared_ptr<const Span> span;  // of the trace
    double begin = now_seconds();
    bool finished = false;

    Staged(const Operation& operation, const Work::Impl& work, int tag, Stream& stream)
        : host(operation),
          exchange(*work.communicator, tag),
          group(work.communicator->name),
          stream(&stream),
          span(work.span) {}

    void copy(void* to, const void* from, int64_t size) const {
        if (size > 0)
            cuda_check(
                cudaMemcpyAsync(to, from, size_t(size), cudaMemcpyDefault, cuda_stream(*stream)));
    }

    void count(double exposed_since) const {
        double end = now_seconds();
        add_count(group, host.kind, {.seconds = end - begin, .exposed = end - exposed_since});
        if (span) trace_span(*span, begin, end);
    }

    void run_collective(const Communicator::Impl& group) {
        char* device_out = host.out;
        // All-reduce, reduce, broadcast. (A gather's input may be part of its output, and on rank 0
        // both begin at the same address.)
        bool in_place = host.in == host.out && host.in_bytes == host.out_bytes;
        plan_reduction(host, group.rank, group.size());
        scratch.resize(size_t(host.scratch_count * host.width()));
        in.resize(size_t(host.in_bytes));
        copy(in.data(), host.in, host.in_bytes);
        stream->synchronize();
        begin = now_seconds();  // until now it waited for its inputs
        if (!in_place) out.resize(size_t(host.out_bytes));
        host.in = in.data();
        host.out = in_place ? in.data() : out.data();
        host.scratch = scratch.data();
        run_over_mpi(host, exchange);
        copy(device_out, host.out, host.out_bytes);
        stream->synchronize();
        finished = true;
        count(begin);
    }

    void post() {
        for (Operation::Message& m : host.messages) {
            devices.push_back(m.data);
            m.data = messages.emplace_back(size_t(m.bytes)).data();
            if (m.send) copy(m.data, devices.back(), m.bytes);
        }
        stream->synchronize();
        begin = now_seconds();
        post_messages(host.messages, exchange);
    }

    void finish_messages(double exposed_since) {
        exchange.wait();
        for (size_t i = 0; i < host.messages.size(); ++i)
            if (!host.messages[i].send)
                copy(devices[i], host.messages[i].data, host.messages[i].bytes);
        stream->synchronize();
        finished = true;
        count(exposed_since);
    }
};

namespace staged {

using Staged = Work::Impl::Staged;

// The asynchronous send_recvs in flight, in the order of their calls. Their tensors are alive
// because a Work waits before it releases them.
static std::vector<std::shared_ptr<Staged>>& under_way() {
    static auto& under_way = *new std::vector<std::shared_ptr<Staged>>;
    return under_way;
}

// Finishes the transfers submitted to the stream up to and including `last`, since a stream runs in
// order.
static void finish_stream(const Stream* stream, const Staged* last) {
    double now = now_seconds();
    for (bool more = true; more;) {
        auto next = std::ranges::find(under_way(), stream,
                                      [](const auto& staged) { return staged->stream; });
        if (next == under_way().end()) return;
        std::shared_ptr<Staged> staged = *next;
        staged->finish_messages(now);
        std::erase(under_way(), staged);
        more = staged.get() != last;
    }
}

void start(Work::Impl& work, const Operation& operation, int tag, Stream& stream) {
    // The data it reads may come from earlier calls on the stream. Receives read nothing, and may
    // all be posted before the first message is sent.
    if (operation.kind != Collective::send_recv ||
        std::ranges::any_of(operation.messages, &Operation::Message::send))
        finish_stream(&stream, nullptr);
    work.staged = std::make_shared<Staged>(operation, work, tag, stream);
    if (operation.kind != Collective::send_recv)
        return work.staged->run_collective(*work.communicator);
    work.staged->post();
    if (work.asynchronous)
        under_way().push_back(work.staged);
    else
        work.staged->finish_messages(work.staged->begin);
}

void finish(Work::Impl& work) {
    if (!work.staged->finished) finish_stream(work.staged->stream, work.staged.get());
}

bool done(const Work::Impl& work) { return work.staged->finished || work.staged->exchange.done(); }

}  // namespace staged

}  // namespace ultrascale
