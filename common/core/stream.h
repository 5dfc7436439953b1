// Streams, events and timestamps: what lets communication run while the device computes.
//
// A stream is a queue of work that runs in order; two streams run at the same time. On CUDA it is a
// cudaStream_t. On the CPU the compute stream is the calling thread itself (work runs at once), and
// every other stream is a thread with a queue. An event marks a place in a stream; another stream,
// or the host, can wait for it.
//
// submit() on the compute stream runs its work on the calling thread, after all that was queued
// (CUDA: the host waits for it). On other streams the work runs on some other thread. On CUDA it
// must then call nothing of CUDA (so it may not hold the last copy of a Tensor or an Event either),
// and it must not wait for another stream's work: one thread runs them all.
//
// compute_stream().wait(event): on the CPU the host waits. On CUDA the host goes on; what compute
// is given later waits.
//
// A failure: work that throws on the compute stream throws out of submit(). On another stream no
// work submitted behind it runs any more, and a stream that waits for a later event of it fails as
// well. The exception comes out wherever the host waits for such an event, on CUDA also where it
// waits for a compute stream that was told to wait for one. Compute goes on.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace ultrascale {

class Event {
public:
    Event() = default;         // already reached
    bool reached() const;      // never blocks
    void synchronize() const;  // the host waits; throws what made the event's stream fail
    struct Impl;
    std::shared_ptr<Impl> impl;  // of the backend
};

class Stream {
public:
    explicit Stream(std::string name);  // `name` is its lane in the trace
    ~Stream();                          // waits for all that was queued
    Stream(const Stream&) = delete;

    const std::string& name() const;
    Event record();                           // reached when all that was queued so far is done
    void wait(const Event& event);            // later work of this stream starts after the event
    void submit(std::function<void()> work);  // runs `work` on the host, in this stream's order
    void synchronize() { record().synchronize(); }
    struct Impl;
    Impl& impl() const { return *impl_; }

private:
    friend Stream& compute_stream();
    explicit Stream(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

// A moment on now_seconds()' clock (trace.h): when all that was queued so far is done. On the CPU's
// compute stream: now.
class Timestamp {
public:
    Timestamp() = default;  // the program's start
    static Timestamp in(Stream& stream);
    double seconds() const;  // the host waits until the moment has come
    struct Impl;

private:
    double seconds_ = 0;          // of a moment that was known at once;
    std::shared_ptr<Impl> impl_;  // any other is the backend's
};

// Both live until the process ends: leaving it with exit() does not wait for what other ranks will
// never send.
Stream& compute_stream();        // where ops.h runs
Stream& communication_stream();  // where asynchronous collectives run unless told otherwise

}  // namespace ultrascale
