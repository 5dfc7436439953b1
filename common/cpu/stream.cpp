// Streams on the CPU: the compute stream is the calling thread; every other stream is a thread with
// a queue.
#include "core/stream.h"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "core/recording.h"
#include "core/stream_failure.h"
#include "core/trace.h"

namespace ultrascale {

struct Event::Impl {
    std::atomic<bool> reached = false;
    std::shared_ptr<Failure> failure;  // written before `reached`, read after it
    std::mutex mutex;
    std::condition_variable changed;

    void reach(std::shared_ptr<Failure> with) {
        std::lock_guard lock(mutex);
        failure = std::move(with);
        reached.store(true, std::memory_order_release);
        changed.notify_all();
    }

    // Most waits are short, and waking a sleeping thread costs more than a few turns of the
    // scheduler.
    void wait() {
        for (int turn = 0; turn < 50 && !reached.load(std::memory_order_acquire); ++turn)
            sched_yield();
        if (reached.load(std::memory_order_acquire)) return;
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return reached.load(std::memory_order_acquire); });
    }
};

bool Event::reached() const { return !impl || impl->reached.load(std::memory_order_acquire); }

void Event::synchronize() const {
    if (!impl) return;
    impl->wait();
    if (impl->failure) {
        impl->failure->seen = true;
        std::rethrow_exception(impl->failure->exception);
    }
}

struct Stream::Impl {
    struct Entry {
        std::function<void()> work;
        std::shared_ptr<Event::Impl> event;  // an event to reach instead of work
    };

    std::string name;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Entry> queue;           // under the mutex
    bool closing = false;              // under the mutex
    std::shared_ptr<Failure> failure;  // used by the thread only
    std::thread thread;                // none in the compute stream

    explicit Impl(std::string name) : name(std::move(name)) {}

    void push(Entry entry) {
        std::lock_guard lock(mutex);
        queue.push_back(std::move(entry));
        changed.notify_one();
    }

    void run() {
        for (;;) {
            Entry entry;
            {
                std::unique_lock lock(mutex);
                changed.wait(lock, [this] { return !queue.empty() || closing; });
                if (queue.empty()) return;
                entry = std::move(queue.front());
                queue.pop_front();
            }
            if (entry.event) {
                entry.event->reach(failure);
            } else if (!failure) {
                try {
                    entry.work();
                } catch (...) {
                    failure = std::make_shared<Failure>();
                    failure->exception = std::current_exception();
                }
            }
        }
    }
};

Stream::Stream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Stream::Stream(std::string name) : impl_(std::make_unique<Impl>(std::move(name))) {
    impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

Stream::~Stream() {
    if (!impl_->thread.joinable()) return;
    {
        std::lock_guard lock(impl_->mutex);
        impl_->closing = true;
        impl_->changed.notify_one();
    }
    impl_->thread.join();
    report_unseen_failure(impl_->failure.get(), impl_->name);
}

const std::string& Stream::name() const { return impl_->name; }

Event Stream::record() {
    Event event;
    if (!impl_->thread.joinable()) return event;
    event.impl = std::make_shared<Event::Impl>();
    impl_->push({nullptr, event.impl});
    return event;
}

void Stream::wait(const Event& event) {
    if (event.impl) submit([event] { event.synchronize(); });
}

void Stream::submit(std::function<void()> work) {
    if (impl_->thread.joinable()) {
        impl_->push({std::move(work), nullptr});
    } else {
        work();
    }
}

struct Timestamp::Impl {
    double seconds = 0;
    Event written;
};

Timestamp Timestamp::in(Stream& stream) {
    Timestamp timestamp;
    if (&stream == &compute_stream()) {
        timestamp.seconds_ = now_seconds();
    } else {
        timestamp.impl_ = std::make_shared<Impl>();
        stream.submit([impl = timestamp.impl_] { impl->seconds = now_seconds(); });
        timestamp.impl_->written = stream.record();
    }
    return timestamp;
}

double Timestamp::seconds() const {
    if (!impl_) return seconds_;
    impl_->written.synchronize();
    return impl_->seconds;
}

Stream& compute_stream() {
    static Stream& stream = *new Stream(std::make_unique<Stream::Impl>("compute"));
    return stream;
}

Stream& communication_stream() {
    static Stream& stream = *new Stream("communication");
    return stream;
}

std::unique_ptr<Recording> make_recording() { return nullptr; }  // operations run when called

}  // namespace ultrascale
