// Streams and events: what lets communication run while the device computes.
//
// A stream is a queue of work that runs in order; two streams run at the same time. On CUDA it is a cudaStream_t. On the
// CPU the compute stream is the calling thread itself (work runs at once), and every other stream is a thread with a queue.
// An event marks a place in a stream; another stream, or the host, can wait for it.
//
// A failure: work that throws on the compute stream throws out of submit(). On another stream nothing queued behind it
// runs any more; the exception comes out wherever one waits for a later event of that stream.
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

// Both live until the process ends: leaving it with exit() does not wait for what other ranks will never send.
Stream& compute_stream();        // where ops.h runs
Stream& communication_stream();  // where asynchronous collectives run unless told otherwise

}  // namespace ultrascale
