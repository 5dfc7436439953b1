// Streams, events and timestamps, which let communication run while the device computes.
//
// A stream is a queue of work that runs in order; different streams run concurrently. On CUDA it is
// a cudaStream_t. On the CPU the compute stream is the calling thread itself (its work runs
// immediately), and every other stream is a thread with a queue. An event marks a place in a
// stream; another stream, or the host, can wait for it.
//
// submit() on the compute stream runs its work on the calling thread after everything queued before
// (on CUDA the host waits for that). On other streams the work runs on another thread. On CUDA,
// work on that thread must not call CUDA, so it must not hold the last copy of a Tensor or an Event
// either; and it must not wait for another stream's work, because one thread runs the work of all
// streams.
//
// compute_stream().wait(event): on the CPU the host waits. On CUDA the host continues, and work
// queued on the compute stream later waits.
//
// Failures: an exception in work on the compute stream leaves submit(). If work on another stream
// fails, no work submitted to that stream later runs any more, and a stream that waits for a later
// event of it fails as well. The exception is thrown wherever the host waits for such an event, and
// on CUDA also where it waits for a compute stream that waits for one. The compute stream itself
// keeps working.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace ultrascale {

class Event {
public:
    Event() = default;         // already reached
    bool reached() const;      // never blocks
    void synchronize() const;  // the host waits; throws the exception that made the event's stream
                               // fail
    struct Impl;
    std::shared_ptr<Impl> impl;  // of the backend
};

class Stream {
public:
    explicit Stream(std::string name);  // `name`: its lane in the trace
    ~Stream();                          // waits for all queued work
    Stream(const Stream&) = delete;

    const std::string& name() const;
    Event record();                           // reached when all work queued so far is done
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

// The time at which all work queued so far is done, on now_seconds()' clock (trace.h). On the CPU's
// compute stream it is the present time; in a recording (recording.h) it is the program's start.
class Timestamp {
public:
    Timestamp() = default;  // the program's start
    static Timestamp in(Stream& stream);
    double seconds() const;  // the host waits until that time
    struct Impl;

private:
    double seconds_ = 0;          // if the time was known immediately;
    std::shared_ptr<Impl> impl_;  // otherwise the backend's
};

// Both live until the process ends; otherwise exit() would wait for messages that other ranks may
// never send.
Stream& compute_stream();        // ops.h's operations run here
Stream& communication_stream();  // the usual stream of asynchronous collectives

}  // namespace ultrascale
