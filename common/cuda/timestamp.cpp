// Timestamps on CUDA.
//
// CUDA reports the time between two events as a float in milliseconds, exact to 0.1 us as long as
// it is below a second. So there is a chain of base events, half a second apart while timestamps
// are taken; GPU time is counted from the first one.
//
// The GPU's clock and the host's drift apart, as any two oscillators do. A base is an event on a
// stream that does nothing else, so the host sees within microseconds when it was reached, without
// waiting for any computation: each base reads both clocks at once. The drift found at a base is
// corrected gradually until the next one, by counting each GPU second as slightly more or less than
// one. So converted times never jump, and the GPU's events stay in order.
#include <algorithm>
#include <limits>
#include <mutex>
#include <vector>

#include "core/stream.h"
#include "core/trace.h"
#include "cuda_event.h"
#include "recording.h"

namespace ultrascale {

namespace {

struct Base : CudaEvent {
    double gpu = 0;                // the GPU's seconds since the first base
    double before = 0, after = 0;  // the host's clock then is between these
    double uncertainty() const { return after - before; }
    Base() : CudaEvent(cudaEventDefault) {}
};

double seconds_between(const CudaEvent& begin, const CudaEvent& end) {
    float milliseconds = 0;
    cuda_check(cudaEventElapsedTime(&milliseconds, begin.event, end.event));
    return milliseconds * 1e-3;
}

class HostClock {
public:
    // The latest base; records a new one if it is due.
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
    struct Stretch {                       // the linear map from GPU to host time from here on
        double gpu, host, rate;
        double at(double gpu_seconds) const { return host + (gpu_seconds - gpu) * rate; }
    };
    std::mutex mutex_;
    std::shared_ptr<Base> base_;
    double looked_ = 0;
    std::vector<Stretch> stretches_;  // in the order of time
    cudaStream_t stream_ = nullptr;

    // Records a new event and the time when the host saw it reached; `patience` ends the wait.
    std::shared_ptr<Base> recorded(double patience) {
        auto next = std::make_shared<Base>();
        next->before = now_seconds();
        cuda_check(cudaEventRecord(next->event, stream_));
        while (!next->reached() && now_seconds() - next->before < patience) {
        }
        next->after = looked_ = now_seconds();
        return next;
    }
    void look() {
        cuda_select_device();
        if (!base_) return look_first();
        const double patience = 200e-6;
        std::shared_ptr<Base> next = recorded(patience);
        // The host was interrupted, or another program uses the GPU: keep the previous base.
        if (next->uncertainty() >= patience) return;
        next->gpu = base_->gpu + seconds_between(*base_, *next);
        const double host = stretches_.back().at(next->gpu);
        const double behind = std::clamp(host, next->before, next->after) - host;
        stretches_.push_back({next->gpu, host, 1 + std::clamp(behind / period, -1e-3, 1e-3)});
        base_ = std::move(next);
    }
    // All times rest on the first base. While other programs use the GPU it may answer late, and
    // then promptly again, so this takes the best of several.
    void look_first() {
        cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        for (int i = 0; i < 10; ++i) {
            std::shared_ptr<Base> next = recorded(std::numeric_limits<double>::infinity());
            if (!base_ || next->uncertainty() < base_->uncertainty()) base_ = std::move(next);
        }
        stretches_.push_back({0, (base_->before + base_->after) / 2, 1});
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
    double at = -1;  // the result, once known
    Impl() : CudaEvent(cudaEventDefault) {}
};

Timestamp Timestamp::in(Stream& stream) {
    Timestamp timestamp;
    if (is_recording()) return timestamp;  // the place is in every replay, at no one time
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
