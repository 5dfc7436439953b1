// Streams on CUDA: cudaStream_t and cudaEvent_t; submitted work runs through cudaLaunchHostFunc.
#include "core/stream.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "core/stream_failure.h"
#include "cuda_common.h"
#include "cuda_event.h"
#include "recording.h"

namespace ultrascale {

// ---- failures -----------------------------------------------------------------------------------

// The failure state that host functions share with their stream; it outlives both.
struct Health {
    std::mutex mutex;
    std::shared_ptr<Failure> failure;  // under the mutex
    uint64_t failed_at = UINT64_MAX;   // under the mutex: the work item that failed

    // Returns the failure, if any, that keeps work item `number` of the stream from running.
    std::shared_ptr<Failure> failure_before(uint64_t number) {
        std::lock_guard lock(mutex);
        return failed_at < number ? failure : nullptr;
    }
    void fail(std::shared_ptr<Failure> with, uint64_t number) {
        std::lock_guard lock(mutex);
        failure = std::move(with);
        failed_at = number;
    }
};

// The first `number` work items of that stream, on which an event depends. Only streams with work
// submitted on the host can fail, so most events depend on none.
struct Dependence {
    std::shared_ptr<Health> health;
    uint64_t number;
};
using Dependences = std::vector<Dependence>;

static std::shared_ptr<Failure> failure_of(const Dependences& dependences) {
    for (const Dependence& d : dependences)
        if (auto failure = d.health->failure_before(d.number)) return failure;
    return nullptr;
}

// ---- events -------------------------------------------------------------------------------------

struct Event::Impl : CudaEvent {
    Dependences dependences;
    bool on_compute = false;
    Impl() : CudaEvent(cudaEventDisableTiming) {}
};

bool Event::reached() const { return !impl || impl->reached(); }

// ---- streams ------------------------------------------------------------------------------------

struct Stream::Impl {
    std::string name;
    bool compute;
    cudaStream_t stream = nullptr;
    std::mutex mutex;  // work is numbered in the order in which CUDA receives it
    uint64_t submitted = 0;
    std::shared_ptr<Health> health = std::make_shared<Health>();
    Dependences waited_for;  // compute only: the latest wait for each stream

    Impl(std::string name, bool compute) : name(std::move(name)), compute(compute) {
        cuda_select_device();
        int lowest = 0,
            highest = 0;  // communication has priority when both can run: its work is small
        cuda_check(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
        cuda_check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                                compute ? lowest : highest));
    }

    struct Job {
        std::function<void()> work;
        Dependence self;
    };
    static void run(void* data) {
        std::unique_ptr<Job> job(static_cast<Job*>(data));
        if (job->self.health->failure_before(job->self.number)) return;
        try {
            job->work();
        } catch (...) {
            auto failure = std::make_shared<Failure>();
            failure->exception = std::current_exception();
            job->self.health->fail(std::move(failure), job->self.number);
        }
    }
    void launch(std::function<void()> work) {
        check(!is_recording(), "work of the host cannot be recorded");
        std::lock_guard lock(mutex);
        auto job = std::make_unique<Job>(std::move(work), Dependence{health, submitted});
        cuda_check(cudaLaunchHostFunc(stream, run, job.get()));
        job.release();
        ++submitted;
    }
};

cudaStream_t cuda_stream(const Stream& stream) { return stream.impl().stream; }

Stream::Stream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Stream::Stream(std::string name) : impl_(std::make_unique<Impl>(std::move(name), false)) {}

Stream::~Stream() {
    if (communication_is_abandoned()) return;  // its work might never end
    cudaStreamSynchronize(impl_->stream);
    report_unseen_failure(impl_->health->failure_before(impl_->submitted).get(), impl_->name);
    cudaStreamDestroy(impl_->stream);
}

const std::string& Stream::name() const { return impl_->name; }

Event Stream::record() {
    Event event;
    event.impl = std::make_shared<Event::Impl>();
    event.impl->on_compute = impl_->compute;
    std::lock_guard lock(impl_->mutex);
    cuda_check(cudaEventRecord(event.impl->event, impl_->stream));
    if (impl_->compute) event.impl->dependences = impl_->waited_for;
    if (impl_->submitted > 0) event.impl->dependences.push_back({impl_->health, impl_->submitted});
    return event;
}

void Stream::wait(const Event& event) {
    if (!event.impl) return;
    cuda_check(cudaStreamWaitEvent(impl_->stream, event.impl->event));
    const Dependences& dependences = event.impl->dependences;
    if (dependences.empty()) return;
    if (!impl_->compute) {
        return impl_->launch([dependences] {  // the event's failure becomes this stream's
            auto failure = failure_of(dependences);
            if (!failure) return;
            failure->seen = true;
            std::rethrow_exception(failure->exception);
        });
    }
    for (const Dependence& d : dependences) {
        auto known = std::ranges::find(impl_->waited_for, d.health, &Dependence::health);
        if (known == impl_->waited_for.end())
            impl_->waited_for.push_back(d);
        else
            known->number = std::max(known->number, d.number);
    }
}

void Stream::submit(std::function<void()> work) {
    if (!impl_->compute) return impl_->launch(std::move(work));
    synchronize();
    work();
}

void Event::synchronize() const {
    if (!impl) return;
    impl->wait();
    auto failure = failure_of(impl->dependences);
    if (!failure) return;
    failure->seen = true;
    if (impl->on_compute) compute_stream().impl().waited_for.clear();  // compute goes on
    std::rethrow_exception(failure->exception);
}

Stream& compute_stream() {
    static Stream& stream = *new Stream(std::make_unique<Stream::Impl>("compute", true));
    return stream;
}

Stream& communication_stream() {
    static Stream& stream = *new Stream("communication");
    return stream;
}

}  // namespace ultrascale
