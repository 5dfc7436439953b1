// Streams on CUDA: cudaStream_t and cudaEvent_t; submitted work runs through cudaLaunchHostFunc.
#include "core/stream.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "comm/mpi/comm_mpi.h"
#include "core/stream_failure.h"
#include "core/trace.h"
#include "cuda_common.h"

namespace ultrascale {

// ---- failures -----------------------------------------------------------------------------------

// What host functions share with their stream; it outlives both.
struct Health {
    std::mutex mutex;
    std::shared_ptr<Failure> failure;  // under the mutex
    uint64_t failed_at = UINT64_MAX;   // under the mutex: the number of the work that failed

    // What keeps the stream's work number `number` from running.
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

// "The first `number` pieces of work of that stream": an event depends on them. Only streams that
// were given work on the host can fail, so most events depend on none.
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

// A CUDA event, which belongs to the current device, as streams do; every thread has a current
// device of its own.
struct CudaEvent {
    cudaEvent_t event = nullptr;
    explicit CudaEvent(unsigned flags) {
        static thread_local const bool selected = (cuda_select_device(), true);
        (void)selected;
        cuda_check(cudaEventCreateWithFlags(&event, flags));
    }
    ~CudaEvent() { cudaEventDestroy(event); }  // may be called before the event is reached
    CudaEvent(const CudaEvent&) = delete;

    bool reached() const {
        cudaError_t status = cudaEventQuery(event);
        if (status != cudaErrorNotReady) cuda_check(status);
        return status == cudaSuccess;
    }
    // Not cudaEventSynchronize: where communication was given up, the event may never be reached.
    void wait() const {
        while (!reached()) {
            check_not_abandoned();
            sched_yield();
        }
    }
};

struct Event::Impl : CudaEvent {
    Dependences dependences;
    bool of_compute = false;
    Impl() : CudaEvent(cudaEventDisableTiming) {}
};

bool Event::reached() const { return !impl || impl->reached(); }

// ---- streams ------------------------------------------------------------------------------------

struct Stream::Impl {
    std::string name;
    bool compute;
    cudaStream_t stream = nullptr;
    std::mutex mutex;  // numbers are given in the order in which CUDA gets the work
    uint64_t submitted = 0;
    std::shared_ptr<Health> health = std::make_shared<Health>();
    Dependences waited_for;  // compute: what it was told to wait for, the latest of each stream

    Impl(std::string name, bool compute) : name(std::move(name)), compute(compute) {
        cuda_select_device();
        int lowest = 0,
            highest = 0;  // communication goes first where both want to run: its work is small
        cuda_check(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
        cuda_check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                                compute ? lowest : highest));
    }

    // A host function and what it needs.
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
    if (communication_is_abandoned()) return;  // it might never be done
    cudaStreamSynchronize(impl_->stream);
    report_unseen_failure(impl_->health->failure_before(impl_->submitted).get(), impl_->name);
    cudaStreamDestroy(impl_->stream);
}

const std::string& Stream::name() const { return impl_->name; }

Event Stream::record() {
    Event event;
    event.impl = std::make_shared<Event::Impl>();
    event.impl->of_compute = impl_->compute;
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
    if (impl->of_compute) compute_stream().impl().waited_for.clear();  // compute goes on
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

// ---- timestamps ---------------------------------------------------------------------------------
//
// CUDA gives the time between two events, as a float of milliseconds: exact to 0.1 us as long as it
// is below a second. So there is a chain of base events, half a second apart while timestamps are
// taken, and the GPU's clock counts from the first.
//
// The GPU's clock and the host's run apart, as any two quartzes do. A base is an event of a stream
// that does nothing else, so the host sees within microseconds when it was reached, without waiting
// for what is computed: each base is one look at both clocks. How far they are apart by then is
// made good until the next base, by letting the GPU's seconds count a little more or less: the
// host's time of a moment never jumps, and what the GPU did one after the other stays so.

namespace {

struct Base : CudaEvent {
    double gpu = 0;                // the GPU's seconds since the first base
    double before = 0, after = 0;  // the host's clock then: between these two
    Base() : CudaEvent(cudaEventDefault) {}
};

double seconds_between(const CudaEvent& begin, const CudaEvent& end) {
    float milliseconds = 0;
    cuda_check(cudaEventElapsedTime(&milliseconds, begin.event, end.event));
    return milliseconds * 1e-3;
}

class HostClock {
public:
    // The latest base; a new one where that is due.
    std::shared_ptr<Base> base() {
        std::lock_guard lock(mutex_);
        if (!base_ || now_seconds() - looked_ > period) look();
        return base_;
    }
    double at(double gpu) {
        std::lock_guard lock(mutex_);
        auto after = std::ranges::upper_bound(stretches_, gpu, {}, &Stretch::gpu);
        return (after == stretches_.begin() ? stretches_.front() : *std::prev(after)).at(gpu);
    }

private:
    static constexpr double period = 0.5;  // from base to base
    struct Stretch {                       // from this moment on
        double gpu, host, rate;
        double at(double gpu_seconds) const { return host + (gpu_seconds - gpu) * rate; }
    };
    std::mutex mutex_;
    std::shared_ptr<Base> base_;
    double looked_ = 0;
    std::vector<Stretch> stretches_;  // in the order of time
    cudaStream_t stream_ = nullptr;

    void look() {
        cuda_select_device();
        if (!stream_) cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        auto next = std::make_shared<Base>();
        next->before = now_seconds();
        cuda_check(cudaEventRecord(next->event, stream_));
        const auto slow = [&] { return base_ && now_seconds() - next->before > 200e-6; };
        while (!next->reached() && !slow()) {
        }
        next->after = looked_ = now_seconds();
        if (slow()) return;  // the host was kept from looking: the base before serves on
        if (!base_) {
            stretches_.push_back({0, (next->before + next->after) / 2, 1});
        } else {
            next->gpu = base_->gpu + seconds_between(*base_, *next);
            const double host = stretches_.back().at(next->gpu);
            const double behind = std::clamp(host, next->before, next->after) - host;
            stretches_.push_back({next->gpu, host, 1 + std::clamp(behind / period, -1e-3, 1e-3)});
        }
        base_ = std::move(next);
    }
};

HostClock& host_clock() {
    static auto& clock = *new HostClock;
    return clock;
}

}  // namespace

struct Timestamp::Impl : CudaEvent {
    std::shared_ptr<Base> base = host_clock().base();
    std::mutex mutex;
    double at = -1;  // asked for already
    Impl() : CudaEvent(cudaEventDefault) {}
};

Timestamp Timestamp::in(Stream& stream) {
    Timestamp timestamp;
    timestamp.impl_ = std::make_shared<Impl>();
    cuda_check(cudaEventRecord(timestamp.impl_->event, cuda_stream(stream)));
    return timestamp;
}

double Timestamp::seconds() const {
    if (!impl_) return seconds_;
    std::lock_guard lock(impl_->mutex);
    if (impl_->base) {
        impl_->wait();
        impl_->at = host_clock().at(impl_->base->gpu + seconds_between(*impl_->base, *impl_));
        impl_->base = nullptr;
    }
    return impl_->at;
}

}  // namespace ultrascale
