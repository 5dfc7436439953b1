#include "comm_issue.h"

#include <algorithm>
#include <exception>

#include "core/device.h"
#include "core/stream_failure.h"

namespace ultrascale {

// ---- Work ---------------------------------------------------------------------------------------

Work::~Work() {
    if (!impl_) return;
    if (std::uncaught_exceptions() > impl_->exceptions && !done()) {
        // The program is ending with an error, and the other ranks may never make the matching
        // call. MPI or NCCL may still write to the tensors, so they must not be freed.
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
    transport::wait(*impl);
}

bool Work::done() const { return !impl_ || transport::done(*impl_); }

// ---- every call ---------------------------------------------------------------------------------

namespace {

void announce(const Communicator::Impl& group, Collective kind, int root, const Call& call,
              bool asynchronous) {
    const double sent =
        call.sent.value_or(bytes_sent(kind, double(call.bytes), group.size(), root == group.rank));
    add_count(group.name, kind, {.calls = 1, .bytes = call.bytes, .sent = sent});
    if (!explain_enabled()) return;
    explain(fmt::format("{} of {} over {} ({}){}, sends {}{}", collective_names[int(kind)],
                        format_bytes(double(call.bytes)), group.name,
                        format_count(group.size(), "rank"), call.detail, format_bytes(sent),
                        asynchronous ? ", asynchronous" : ""));
}

// The call's span in the trace, without its times; nullptr if nothing is recorded. All calls are
// numbered, so that a call has the same number even on ranks that began to record at different
// times.
std::shared_ptr<const Span> span_of(Communicator::Impl& group, Collective kind, int64_t bytes,
                                    const std::string& lane) {
    const int64_t call = ++group.calls[size_t(kind)];
    if (!trace_recording()) return nullptr;
    return std::make_shared<Span>(Span{.name = collective_names[size_t(kind)],
                                       .of = trace_name(),
                                       .lane = lane,
                                       .bytes = double(bytes),
                                       .group = group.name,
                                       .first_rank = std::ranges::min(group.world_ranks),
                                       .ranks = group.size(),
                                       .call = call});
}

ImaginedSeconds imagined_seconds;

}  // namespace

Work issue(const std::shared_ptr<Communicator::Impl>& group, Operation operation, Call call,
           Stream& stream) {
    group->open();
    auto work = std::make_shared<Work::Impl>();
    work->kind = operation.kind;
    work->tensors = std::move(call.tensors);
    work->communicator = group;
    work->asynchronous = &stream != &compute_stream();
    if (group->imagined) {
        announce(*group, operation.kind, operation.root, call, work->asynchronous);
        work->span = span_of(*group, operation.kind, call.bytes, stream.name());
        const double seconds =
            imagined_seconds
                ? imagined_seconds(group->name, operation.kind, double(call.bytes), group->size())
                : 0;
        transport::imagine(*work, std::move(operation), seconds, stream);
        return Work(std::move(work));
    }
    if (Tensor scratch = transport::scratch(*group, operation))
        work->tensors.push_back(std::move(scratch));
    announce(*group, operation.kind, operation.root, call, work->asynchronous);
    int tag = operation.kind == Collective::send_recv ? 0 : group->collective_tag();
    work->span = span_of(*group, operation.kind, call.bytes, stream.name());
    transport::start(*work, std::move(operation), tag, stream);
    return Work(std::move(work));
}

bool communication_through_host() { return device_is_gpu() && transport::over_mpi(); }

void Communicator::barrier() const {
    if (impl_->imagined) return;
    impl_->open();
    announce(*impl_, Collective::barrier, -1, {0, {}}, false);
    const auto span = span_of(*impl_, Collective::barrier, 0, "compute");
    Exchange exchange(*impl_, impl_->collective_tag());
    double begin = now_seconds();
    run_over_mpi({.kind = Collective::barrier}, exchange);
    double end = now_seconds();
    add_count(impl_->name, Collective::barrier, {.seconds = end - begin, .exposed = end - begin});
    if (span) trace_span(*span, begin, end);
}

// ---- groups whose other ranks are imagined ------------------------------------------------------

void imagine_links(ImaginedSeconds seconds) { imagined_seconds = std::move(seconds); }

// After a gather, all slices hold this rank's own numbers; after a reduce-scatter, the output is
// this rank's own slice; received messages are zero.
std::vector<ImaginedCopy> imagined_copies(const Operation& o, const Communicator::Impl& group) {
    std::vector<ImaginedCopy> copies;
    const int64_t n = group.size(), me = group.rank;
    switch (o.kind) {
        case Collective::all_gather:
        case Collective::gather:
            for (int64_t r = 0; o.out && r < n; ++r)
                copies.push_back({o.out + r * o.in_bytes, o.in, o.in_bytes});
            break;
        case Collective::reduce_scatter:
        case Collective::scatter:
            if (o.in) copies.push_back({o.out, o.in + me * o.out_bytes, o.out_bytes});
            break;
        case Collective::all_to_all:
            for (size_t r = 0; r < size_t(n); ++r) {
                const int64_t sent = o.send_begin[r + 1] - o.send_begin[r],
                              received = o.recv_begin[r + 1] - o.recv_begin[r];
                copies.push_back({o.out + o.recv_begin[r],
                                  received <= sent ? o.in + o.send_begin[r] : nullptr, received});
            }
            break;
        case Collective::send_recv:
            for (const Operation::Message& m : o.messages)
                if (!m.send) copies.push_back({m.data, nullptr, m.bytes});
            break;
        default: break;  // a sum or a broadcast stays as it is
    }
    std::erase_if(copies, [](const ImaginedCopy& c) { return c.to == c.from || c.bytes == 0; });
    return copies;
}

}  // namespace ultrascale
