// The CPU's transport: MPI, in the stream's order.
#include <chrono>
#include <cstring>
#include <thread>

#include "comm/comm_transport.h"
#include "core/trace.h"

namespace ultrascale::transport {

void open(Communicator::Impl&) {}
void close() {}
bool over_mpi() { return true; }
std::shared_ptr<Allocator> symmetric_memory(const Communicator::Impl&) { return nullptr; }
int64_t open_mailbox(Communicator::Impl&, int64_t) { return 0; }

Tensor scratch(const Communicator::Impl& group, Operation& operation) {
    plan_reduction(operation, group.rank, group.size());
    if (operation.scratch_count == 0) return {};
    Tensor scratch = Tensor::empty({operation.scratch_count}, operation.dtype, Memory::workspace);
    operation.scratch = static_cast<char*>(scratch.data());
    return scratch;
}

void start(Work::Impl& work, Operation operation, int tag, Stream& stream) {
    if (work.asynchronous) stream.wait(compute_stream().record());  // when the inputs are ready
    stream.submit([operation = std::move(operation), exchange = Exchange(*work.communicator, tag),
                   group = work.communicator->name, span = work.span,
                   asynchronous = work.asynchronous]() mutable {
        double begin = now_seconds();
        run_over_mpi(operation, exchange);
        double end = now_seconds();
        add_count(group, operation.kind,
                  {.seconds = end - begin, .exposed = asynchronous ? 0 : end - begin});
        if (span) trace_span(*span, begin, end);
    });
    work.finished = stream.record();
}

void imagine(Work::Impl& work, Operation operation, double seconds, Stream& stream) {
    if (work.asynchronous) stream.wait(compute_stream().record());
    stream.submit([copies = imagined_copies(operation, *work.communicator), kind = operation.kind,
                   group = work.communicator->name, seconds, span = work.span,
                   asynchronous = work.asynchronous] {
        const double begin = now_seconds();
        for (const ImaginedCopy& c : copies) {
            if (c.from)
                std::memmove(c.to, c.from, size_t(c.bytes));
            else
                std::memset(c.to, 0, size_t(c.bytes));
        }
        const std::chrono::duration<double> left(begin + seconds - now_seconds());
        if (left.count() > 0) std::this_thread::sleep_for(left);
        const double end = now_seconds();
        add_count(group, kind, {.seconds = end - begin, .exposed = asynchronous ? 0 : end - begin});
        if (span) trace_span(*span, begin, end);
    });
    work.finished = stream.record();
}

void wait(Work::Impl& work) {
    if (work.finished.reached()) return work.finished.synchronize();  // only rethrows a failure
    double begin = now_seconds();
    work.finished.synchronize();
    add_count(work.communicator->name, work.kind, {.exposed = now_seconds() - begin});
}

bool done(Work::Impl& work) { return work.finished.reached(); }

}  // namespace ultrascale::transport
